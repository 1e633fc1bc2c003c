"""Timelines list every event once and in order, for all kinds of graphs, and despite unreadable rows."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels import LastValue
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Checkpointer, Command, interrupt

from langgraph_durable import DurableSaver, effect
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.timeline import TimelineEntry
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, answer, calls, made, remind
from tests.acceptance.graphs import (
    Graph,
    NodeError,
    Runs,
    ask,
    ask_twice,
    chain,
    ignore,
    parallel_asks,
    workflow,
)
from tests.acceptance.subgraphs import nested
from tests.effects import SCHEMA

pytestmark = pytest.mark.context


async def trail(drive: Drive, saver: DurableSaver, thread_id: str = "thread") -> list[TimelineEntry]:
    """Return a thread's timeline, after checks that hold for every timeline."""
    if drive.asynchronous:
        entries = [entry async for entry in saver.atimeline(thread_id)]
    else:
        entries = list(saver.timeline(thread_id))
    stored = {
        (c.config["configurable"]["checkpoint_ns"], c.config["configurable"]["checkpoint_id"]): c
        async for c in saver.alist(thread(thread_id))
    }
    steps = [(e.checkpoint_ns, e.checkpoint_id) for e in entries if e.phase in STEPS]
    assert sorted(stored) == sorted(steps)
    now = time.time() * 1000
    for number, entry in enumerate(entries):
        assert json.loads(json.dumps(entry.payload)) == entry.payload
        assert (entry.thread_id, entry.schema_version) == (thread_id, 1)
        assert now - 600_000 < entry.timestamp < now + 600_000
        key = (entry.checkpoint_ns, entry.checkpoint_id)
        if key in stored and entry.phase in WRITTEN:
            before = [(e.checkpoint_ns, e.checkpoint_id) for e in entries[:number] if e.phase in STEPS]
            assert key in before, "a write comes after its checkpoint"
            children = [
                (key[0], c.config["configurable"]["checkpoint_id"])
                for (ns, _), c in stored.items()
                if ns == key[0]
                and c.parent_config
                and c.parent_config["configurable"]["checkpoint_id"] == key[1]
            ]
            assert not set(children) & set(before), "and before checkpoints made from it"
    return entries


STEPS = {"run_started", "step", "state_updated", "forked"}
WRITTEN = {"model_answered", "tool_answered", "replayed", "interrupted", "resumed", "task_failed"}


def phases(entries: list[TimelineEntry]) -> list[str]:
    """Return the phases, without steps."""
    return [entry.phase for entry in entries if entry.phase != "step"]


async def test_tool_loop_appears_in_order(saver: DurableSaver, drive: Drive, world: World) -> None:
    script = (calls(("remind", "a", "1")), calls(("remind", "b", "1"), ("remind", "c", "2")))
    graph = agent(saver, [made(drive, remind(world))], *script)
    await drive.invoke(graph, GIVEN, {**thread(), "metadata": {"run_id": "the run"}})

    entries = await trail(drive, saver)

    tools = ["tool_begun", "tool_ended", "tool_answered"]
    told = phases(entries)
    assert told[:2] == ["run_started", "model_answered"]
    assert told[2:5] == tools
    assert told[5] == "model_answered"
    assert sorted(told[6:12]) == sorted(tools * 2)
    assert told[12:] == ["model_answered", "ended"]
    assert {entry.run_id for entry in entries} == {"the run"}
    steps = [entry.payload["step"] for entry in entries if entry.phase in STEPS]
    assert steps == [-1, 0, 1, 2, 3, 4, 5]
    answered = [entry.payload for entry in entries if entry.phase == "model_answered"]
    assert [len(payload["tool_calls"]) for payload in answered] == [1, 2, 0]
    assert answered[0]["tool_calls"] == [{"id": "1", "name": "remind", "args": {"text": "a"}}]
    assert answered[0]["node"] == "model"
    begun = [entry.payload for entry in entries if entry.phase == "tool_begun"]
    assert sorted(payload["args"]["text"] for payload in begun) == ["a", "b", "c"]
    said = [entry.payload for entry in entries if entry.phase == "tool_answered"]
    assert [(p["tool"], p["content"], p["status"]) for p in said] == [
        ("remind", f"did {text}", "success") for text in "abc"
    ]


async def test_each_turn_appears_separately(saver: DurableSaver, drive: Drive) -> None:
    graph = agent(saver, [], AIMessage("one"), AIMessage("two"))
    for _ in range(2):
        await drive.invoke(graph, GIVEN, thread())
    turn = ["run_started", "model_answered", "ended"]
    entries = await trail(drive, saver)
    assert phases(entries) == turn * 2
    assert [e.payload["content"] for e in entries if e.phase == "model_answered"] == ["one", "two"]


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
async def test_question_and_answer_appear(saver: DurableSaver, drive: Drive, durability: str) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread(), durability=durability)
    asked = await trail(drive, saver)
    assert phases(asked) == ["run_started", "interrupted"][durability == "exit" :]
    assert asked[-1].payload["question"] == "ask?0"
    [question] = interrupts(await drive.state(graph, thread()))
    assert asked[-1].payload["interrupt_id"] == question.id
    await drive.invoke(graph, Command(resume="yes"), thread(), durability=durability)
    told = await trail(drive, saver)
    assert [e.phase for e in told if e.phase in ("interrupted", "ended")] == ["interrupted", "ended"]
    resumed = [e.payload for e in told if e.phase == "resumed"]
    if durability != "exit":
        assert phases(told) == ["run_started", "interrupted", "resumed", "resumed", "ended"]
        # LangGraph saves both concurrently, so their order is unknown.
        [given, taken] = sorted(resumed, key=len)
        assert given == {"answer": "yes"}
        assert (taken["node"], taken["answers"]) == ("ask", ["yes"])


async def test_last_of_several_questions_appears(saver: DurableSaver, drive: Drive) -> None:
    graph = ask_twice(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    for given in ("one", "two"):
        await drive.invoke(graph, Command(resume=given), thread())
    told = await trail(drive, saver)
    assert [e.payload["question"] for e in told if e.phase == "interrupted"] == ["ask?1"]
    resumed = [e.payload for e in told if e.phase == "resumed"]
    assert [e.get("answer") or e.get("answers") for e in resumed] == ["two", ["one", "two"]]


async def test_parallel_questions_and_their_answers_appear(saver: DurableSaver, drive: Drive) -> None:
    graph = parallel_asks(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    for question in interrupts(await drive.state(graph, thread())):
        await drive.invoke(graph, Command(resume={question.id: f"to {question.value}"}), thread())
    told = await trail(drive, saver)
    assert sorted(e.payload["question"] for e in told if e.phase == "interrupted") == ["alice?0", "bob?0"]
    assert sorted((e.payload["node"], *e.payload["answers"]) for e in told if e.phase == "resumed") == [
        ("alice", "to alice?0"),
        ("bob", "to bob?0"),
    ]
    assert told[-1].phase == "ended"


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_question_of_a_subgraph_appears_once(
    checkpointer: Checkpointer, saver: DurableSaver, drive: Drive
) -> None:
    graph = nested(saver, ignore, checkpointer=checkpointer)
    await drive.invoke(graph, {"trail": []}, thread())
    await drive.invoke(graph, Command(resume="yes"), thread())
    told = await trail(drive, saver)
    [asked] = [e for e in told if e.phase == "interrupted"]
    assert (asked.checkpoint_ns or "").count("|") == 1
    assert asked.payload["node"] == "inner_ask"
    assert told[-1].phase == "ended"
    assert [e.phase for e in told].count("ended") == 1


async def test_late_write_comes_before_the_checkpoint_made_from_it(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    inner = agent(None, [], AIMessage("from inside"))
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_sequence([("after", lambda state: {"messages": [AIMessage("from outside")]})])
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "after")
    await drive.invoke(builder.compile(checkpointer=saver), GIVEN, thread())
    whole = phases(await trail(drive, saver))
    assert whole == ["run_started", "model_answered", "model_answered", "ended"]
    with psycopg.connect(conninfo) as connection:
        connection.execute(f"UPDATE {SCHEMA}.writes SET stored_at = stored_at + interval '1 minute'")
    late = await trail(drive, saver)
    assert phases(late) == whole
    said = [e.payload["content"] for e in late if e.phase == "model_answered"]
    assert said == ["from inside", "from outside"]


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_agent_in_a_graph_appears_once(
    checkpointer: Checkpointer, saver: DurableSaver, drive: Drive, world: World
) -> None:
    inner = agent(checkpointer, [made(drive, remind(world))], calls(("remind", "a", "1")))
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    await drive.invoke(builder.compile(checkpointer=saver), GIVEN, thread())
    told = await trail(drive, saver)
    assert phases(told) == [
        "run_started",
        "model_answered",
        "tool_begun",
        "tool_ended",
        "tool_answered",
        "model_answered",
        "ended",
    ]
    inside = [e.checkpoint_ns for e in told if e.phase.startswith(("model", "tool"))]
    assert len(set(inside)) == 1
    assert (inside[0] or "").startswith("inner")


async def test_unknown_effect_appears_until_a_human_decides(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, None, thread())
    [question] = interrupts(await drive.state(graph, thread()))
    await drive.invoke(graph, Command(resume=answer(question, "happened", result="did a")), thread())
    told = await trail(drive, saver)
    after = phases(told)[phases(told).index("tool_begun") :]
    assert after == [
        "tool_begun",
        "tool_unknown",
        "task_failed",
        "interrupted",
        "resumed",
        "tool_ended",  # by the human's answer
        "replayed",  # with the human's result, so its message is marked
        "model_answered",
        "ended",
    ]
    failed = next(e.payload for e in told if e.phase == "task_failed")
    assert (failed["node"], "no answer" in failed["error"]) == ("tools", True)
    ended = next(e.payload for e in told if e.phase == "tool_ended")
    assert (ended["actor"], ended["to"]) == ("human", "completed")


async def test_replayed_effect_is_marked(saver: DurableSaver, drive: Drive, world: World) -> None:
    def reminded(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        return ToolMessage(world(text), tool_call_id=tool_call_id, name="remind")

    async def areminded(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        return reminded(text, tool_call_id)

    body = areminded if drive.asynchronous else reminded
    named = tool("remind", description="Remind.")(effect(name="remind")(body))
    graph = agent(saver, [named], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    asked = next(s for s in await drive.history(graph, thread()) if s.next == ("tools",))
    await drive.invoke(graph, None, asked.config)
    told = await trail(drive, saver)
    assert world.done == ["a"]
    assert phases(told)[-4:] == ["forked", "replayed", "model_answered", "ended"]
    replayed = next(e.payload for e in told if e.phase == "replayed")
    begun = next(e.payload for e in told if e.phase == "tool_begun")
    assert replayed["effect"]["effect_id"] == begun["effect_id"]


async def test_updates_by_hand_and_failures_appear(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, Runs("second"))
    with pytest.raises(NodeError):
        await drive.invoke(graph, {"trail": []}, thread())
    assert phases(await trail(drive, saver)) == ["run_started", "task_failed"]
    await drive.update(graph, thread(), {"trail": ["by hand"]}, as_node="second")
    await drive.invoke(graph, None, thread())
    assert phases(await trail(drive, saver)) == ["run_started", "task_failed", "state_updated", "ended"]


async def test_messages_by_hand_are_not_answers(saver: DurableSaver, drive: Drive) -> None:
    graph = agent(saver, [], AIMessage("model"))
    await drive.invoke(graph, {"messages": [AIMessage("before", id="b"), *GIVEN["messages"]]}, thread())
    await drive.update(graph, thread(), {"messages": [AIMessage("by hand", id="h")]}, as_node="model")
    told = await trail(drive, saver)
    assert phases(told) == ["run_started", "model_answered", "ended", "state_updated"]
    [said] = [e.payload for e in told if e.phase == "model_answered"]
    assert said["content"] == "done"  # the script counts earlier messages


async def test_functional_api_has_a_start_and_an_end(saver: DurableSaver, drive: Drive) -> None:
    graph = workflow(saver, ignore)
    await drive.invoke(graph, 2, thread())
    told = phases(await trail(drive, saver))
    assert told[0] == "run_started"
    assert ("ended" in told) == ("interrupted" not in told)


async def test_end_of_a_raw_pregel_graph_does_not_appear(saver: DurableSaver, drive: Drive) -> None:
    node = NodeBuilder().subscribe_only("a").do(lambda text: text + "!").write_to("b")
    graph: Graph = Pregel(
        nodes={"node": node},
        channels={"a": LastValue(str), "b": LastValue(str)},
        input_channels="a",
        output_channels="b",
        checkpointer=saver,
    )
    assert await drive.invoke(graph, "hello", thread()) == "hello!"
    assert phases(await trail(drive, saver)) == ["run_started"]


async def test_page_size_does_not_change_the_timeline(
    saver: DurableSaver, drive: Drive, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [calls(*((("remind", f"{n} {i}", str(i))) for i in range(3))) for n in range(3)]
    graph = agent(saver, [made(drive, remind(world))], *script, apart=True)
    await drive.invoke(graph, GIVEN, thread())
    everything = await trail(drive, saver)
    assert len([e for e in everything if e.phase == "tool_ended"]) == 9
    for size in (1, 2, 3):
        monkeypatch.setattr("langgraph_durable._inspect.trail._STEPS", size)
        monkeypatch.setattr("langgraph_durable._inspect.trail._EVENTS", size)
        assert await trail(drive, saver) == everything
    saver.prune(["thread"], keep_last=1)
    left = await trail(drive, saver)
    assert [e.phase for e in left if e.phase in STEPS] == ["step"]
    assert len([e for e in left if e.phase == "tool_ended"]) == 9
    saver.delete_thread("thread")
    assert phases(await trail(drive, saver)).count("tool_ended") == 9


async def test_timeline_continues_while_a_run_writes(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    walk = saver.timeline("thread")
    assert next(walk).phase == "run_started"
    await drive.invoke(graph, {"trail": []}, thread())  # holds neither a connection nor a snapshot
    assert list(walk)[-1].phase == "ended"


async def test_unknown_and_deleted_threads_have_no_timeline(saver: DurableSaver, drive: Drive) -> None:
    assert await trail(drive, saver, "never") == []
    await drive.invoke(chain(saver, ignore), {"trail": []}, thread())
    saver.delete_thread("thread")
    assert await trail(drive, saver) == []
    with pytest.raises(InvalidConfigError):
        saver.timeline("")


# --- unreadable rows ---


@pytest.mark.parametrize("table", ["writes", "metadata", "checkpoint", "input"])
async def test_damaged_row_appears_as_unreadable(
    table: str, saver: DurableSaver, conninfo: str, drive: Drive, world: World
) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    whole = await trail(drive, saver)
    damage = {
        "writes": "UPDATE {}.writes SET value = '\\xc1' WHERE channel = 'messages'",
        "metadata": "UPDATE {}.checkpoints SET metadata = '\\xc1'",
        "checkpoint": "UPDATE {}.checkpoints SET checkpoint = '\\xc1'",
        "input": "UPDATE {}.effects SET input = '\\xc1'",
    }
    with psycopg.connect(conninfo) as connection:
        connection.execute(damage[table].format(SCHEMA))
    told = list(saver.timeline("thread"))
    unreadable = [e for e in told if "unreadable" in e.payload]
    assert all("cannot read" in e.payload["unreadable"] for e in unreadable)
    expected = {"writes": 4, "metadata": 5, "checkpoint": 4, "input": 1}
    assert len(unreadable) == expected[table]
    if table != "input":
        assert all("thread 'thread'" in e.payload["unreadable"] for e in unreadable)
    kept = [e for e in told if "unreadable" not in e.payload]
    assert [e for e in whole if e in kept] == kept


async def test_all_is_unreadable_without_the_key(conninfo: str, drive: Drive) -> None:
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    async with DurableSaver.from_conn_string(conninfo, serde=key) as saver:
        await drive.invoke(ask(saver, ignore), {"trail": []}, thread())
        assert phases(await trail(drive, saver)) == ["run_started", "interrupted"]
    async with DurableSaver.from_conn_string(conninfo) as other:
        told = [e async for e in other.atimeline("thread")]
        assert told
        assert {e.phase for e in told} == {"unreadable"}


async def test_values_without_json_form_appear(saver: DurableSaver, drive: Drive) -> None:
    odd = {"nan": float("nan"), "bytes": b"\xff", 1: {2, 3}, "surrogate": "\ud800", "deep": [[{"a": None}]]}

    def node(state: Any) -> dict[str, Any]:
        return {"messages": [("ai", str(interrupt(odd)))]}

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    await drive.invoke(builder.compile(checkpointer=saver), GIVEN, thread())
    told = await trail(drive, saver)
    assert told[-1].phase == "interrupted"
    question = told[-1].payload["question"]
    assert (question["nan"], question["deep"], sorted(question["1"])) == ("NaN", odd["deep"], [2, 3])
