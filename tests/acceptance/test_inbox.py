"""`pending_interrupts` agrees with `get_state`, thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Checkpointer, Command, interrupt

from langgraph_durable import DurableSaver, Happened, effect
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.interrupts import PendingInterrupt
from tests.acceptance.driving import Drive, answers, interrupts, thread
from tests.acceptance.graphs import (
    Builder,
    Graph,
    Steps,
    ask,
    ask_in_fan,
    ask_twice,
    chain,
    ignore,
    parallel_asks,
)
from tests.acceptance.subgraphs import nested, subgraph_node
from tests.effects import SCHEMA

pytestmark = pytest.mark.context


async def inbox(drive: Drive, saver: DurableSaver, **options: Any) -> list[PendingInterrupt]:
    if drive.asynchronous:
        return [found async for found in saver.apending_interrupts(**options)]
    return list(saver.pending_interrupts(**options))


async def same_as_state(drive: Drive, saver: DurableSaver, graph: Graph, thread_id: str) -> list[Any]:
    """Check the inbox against LangGraph's own answer; return the questions."""
    found = await inbox(drive, saver, thread_id=thread_id)
    state = interrupts(await drive.state(graph, thread(thread_id)))
    assert [(f.interrupt_id, f.question) for f in found] == [(i.id, i.value) for i in state]
    assert all(f.thread_id == thread_id and f.unreadable is None for f in found)
    assert all(timedelta(0) <= f.age < timedelta(minutes=5) for f in found)
    return [f.question for f in found]


def wrapped(builder: Callable[..., Graph], checkpointer: Checkpointer) -> Builder:
    return lambda saver, record: builder(saver, record, checkpointer=checkpointer)


GRAPHS: dict[str, Builder] = {
    "one question": ask,
    "two questions of one node": ask_twice,
    "parallel nodes": parallel_asks,
    "sends": ask_in_fan,
    "nested subgraphs": wrapped(nested, None),
    "nested subgraphs that keep state": wrapped(nested, True),
    "a subgraph as a node": wrapped(subgraph_node, None),
    "a subgraph as a node that keeps state": wrapped(subgraph_node, True),
    "nothing to ask": chain,
}


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
@pytest.mark.parametrize("name", GRAPHS)
async def test_inbox_agrees_with_the_states(
    name: str, durability: str, saver: DurableSaver, drive: Drive
) -> None:
    graph = GRAPHS[name](saver, ignore)
    await drive.invoke(
        graph,
        {"trail": [], "outer": [], "shared": [], "items": [1, 2, 3]},
        thread("asks"),
        durability=durability,
    )
    asked = await same_as_state(drive, saver, graph, "asks")
    assert bool(asked) == (name != "nothing to ask")
    for _ in range(10):  # answered one at a time
        waiting = await inbox(drive, saver)
        if not waiting:
            break
        answered = {waiting[0].interrupt_id: "yes"}
        await drive.invoke(graph, Command(resume=answered), thread("asks"), durability=durability)
        await same_as_state(drive, saver, graph, "asks")
    assert (await drive.state(graph, thread("asks"))).next == ()


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_innermost_asking_graph_is_named(
    checkpointer: Checkpointer, saver: DurableSaver, drive: Drive
) -> None:
    graph = nested(saver, ignore, checkpointer=checkpointer)
    await drive.invoke(graph, {"trail": []}, thread())
    [found] = await inbox(drive, saver)
    where = thread(checkpoint_ns=found.checkpoint_ns, checkpoint_id=found.checkpoint_id)
    stored = await saver.aget_tuple(where)
    assert stored is not None
    assert found.checkpoint_ns.count("|") == 1
    assert [w[1] for w in stored.pending_writes or []] == ["__interrupt__"]


async def test_answer_may_lead_to_another_question(saver: DurableSaver, drive: Drive) -> None:
    graph = ask_twice(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    [first] = await inbox(drive, saver)
    await drive.invoke(graph, Command(resume="one"), thread())
    [second] = await inbox(drive, saver)
    assert (first.question, second.question) == ("ask?0", "ask?1")
    assert first.checkpoint_id == second.checkpoint_id
    assert second.asked_at > first.asked_at
    [again] = await inbox(drive, saver)
    assert again.asked_at == second.asked_at


async def test_parallel_tasks_wait_for_different_answers(saver: DurableSaver, drive: Drive) -> None:
    @task
    def child(question: str) -> Any:
        return interrupt(question)

    @task
    async def achild(question: str) -> Any:
        return interrupt(question)

    @entrypoint(checkpointer=saver)
    def flow(_: str) -> list[Any]:
        asked = [child("a?"), child("b?")]
        return [answer.result() for answer in asked]

    @entrypoint(checkpointer=saver)
    async def aflow(_: str) -> list[Any]:
        asked = [achild("a?"), achild("b?")]
        return [await answer for answer in asked]

    graph: Graph = aflow if drive.asynchronous else flow
    await drive.invoke(graph, "go", thread())
    # LangGraph's state shows what the entrypoint waits for, and its resume takes both.
    waiting = {f.question: f.interrupt_id for f in await inbox(drive, saver)}
    shown = interrupts(await drive.state(graph, thread()))
    assert set(waiting) >= {i.value for i in shown}
    resumed: Command[Any] = Command(resume={waiting[q]: q.upper() for q in waiting})
    result = await drive.invoke(graph, resumed, thread())
    if "b?" not in waiting:  # the second had not asked yet
        result = await drive.invoke(graph, Command(resume="B?"), thread())
    assert result == ["A?", "B?"]
    assert await inbox(drive, saver) == []


async def test_threads_that_no_longer_wait_are_left_out(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    for name in ("answered", "gone", "pruned", "superseded", "again", "copied", "waits"):
        await drive.invoke(graph, {"trail": []}, thread(name))
    await drive.invoke(graph, Command(resume="yes"), thread("answered"))
    saver.delete_thread("gone")
    saver.prune(["pruned"], keep_last=1)
    saver.copy_thread("copied", "copy")
    await drive.update(graph, thread("superseded"), {"trail": ["by hand"]}, as_node="ask")
    await drive.invoke(graph, {"trail": ["anew"]}, thread("again"))

    waiting = await inbox(drive, saver)

    assert [f.thread_id for f in waiting] == ["again", "copied", "copy", "pruned", "waits"]
    for found in waiting:
        await same_as_state(drive, saver, graph, found.thread_id)
    copied, copy = (next(f for f in waiting if f.thread_id == name) for name in ("copied", "copy"))
    assert copied.asked_at == copy.asked_at
    assert await inbox(drive, saver, thread_id="answered") == []
    assert await inbox(drive, saver, thread_id="never was") == []


async def test_fork_has_its_own_question(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    await drive.invoke(graph, Command(resume="yes"), thread())
    asked = next(s for s in await drive.history(graph, thread()) if s.next == ("ask",))
    await drive.invoke(graph, None, asked.config)
    assert await same_as_state(drive, saver, graph, "thread") == ["ask?0"]


async def test_pages_contain_every_thread_once(
    saver: DurableSaver, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_durable._inspect.inbox._PAGE", 2)
    graph = parallel_asks(saver, ignore)
    names = [f"thread-{number}" for number in range(5)]
    for name in names:
        await drive.invoke(graph, {"trail": []}, thread(name))
    await drive.invoke(graph, {"trail": []}, thread("thread-3-answered"))
    state = await drive.state(graph, thread("thread-3-answered"))
    resume = answers(state, alice="a", bob="b")
    await drive.invoke(graph, Command(resume=resume), thread("thread-3-answered"))

    everything = await inbox(drive, saver)

    assert [f.thread_id for f in everything] == [name for name in names for _ in range(2)]
    first = await inbox(drive, saver, limit=3)
    rest = await inbox(drive, saver, after=first[-1].thread_id, limit=3)
    assert [(f.thread_id, f.question) for f in first + rest] == [
        (f.thread_id, f.question) for f in everything
    ]
    assert await inbox(drive, saver, limit=0) == []


async def test_invalid_arguments_are_refused(saver: DurableSaver) -> None:
    wrongs: list[dict[str, Any]] = [{"thread_id": ""}, {"limit": -1}, {"after": None}]
    for wrong in wrongs:
        with pytest.raises(InvalidConfigError):
            saver.pending_interrupts(**wrong)


# --- unreadable rows ---


async def test_encrypted_question_is_read_with_its_key(conninfo: str, drive: Drive) -> None:
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    async with DurableSaver.from_conn_string(conninfo, serde=key) as saver:
        graph = ask(saver, ignore)
        await drive.invoke(graph, {"trail": []}, thread())
        assert await same_as_state(drive, saver, graph, "thread") == ["ask?0"]
    async with DurableSaver.from_conn_string(conninfo) as other:
        [found] = await inbox(drive, other)
        assert found.thread_id == "thread"
        assert (found.interrupt_id, found.question) == (None, None)
        assert "thread 'thread'" in (found.unreadable or "")


@pytest.mark.parametrize("stored", [b"\xc1", b"\x93\x01\x02\x03", b"\x80"])
async def test_damaged_question_does_not_hide_others(
    stored: bytes, saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    graph = ask(saver, ignore)
    for name in ("a", "b", "c"):
        await drive.invoke(graph, {"trail": []}, thread(name))
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            f"UPDATE {SCHEMA}.writes SET value = %s WHERE thread_id = 'b' AND channel = '__interrupt__'",
            [stored],
        )
    found = await inbox(drive, saver)
    assert [(f.thread_id, f.question) for f in found] == [("a", "ask?0"), ("b", None), ("c", "ask?0")]
    assert "cannot read the question of task" in (found[1].unreadable or "")
    assert "thread 'b'" in (found[1].unreadable or "")


# --- questions of the effect log ---


def paying(saver: DurableSaver, drive: Drive, names: tuple[str, ...]) -> Graph:
    """Nodes whose effects ask, and one whose own question mentions an effect."""
    lost = set(names)

    def pay(name: str) -> str:
        if name in lost:
            lost.remove(name)
            raise TimeoutError("no answer")
        return "paid"

    def node(name: str) -> Any:
        if drive.asynchronous:

            @effect(on_unknown="ask")
            async def apay() -> str:
                return pay(name)

            async def anode(_: Steps) -> dict[str, Any]:
                return {"trail": [await apay()]}

            return anode

        @effect(name="apay", on_unknown="ask")
        def do() -> str:
            return pay(name)

        return lambda _: {"trail": [do()]}

    builder = StateGraph(Steps)
    for name in names:
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


async def test_question_about_an_effect_names_it(saver: DurableSaver, drive: Drive) -> None:
    graph = paying(saver, drive, ("left", "right"))
    log = saver.effects
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, {"trail": []}, thread())
    # The one that failed first may have kept the other from its body.
    while len([e async for e in log.alist(state="unknown")]) < 2:
        with suppress(TimeoutError):
            await drive.invoke(graph, None, thread())
    await drive.invoke(graph, None, thread())
    unknown = {e.effect_id for e in log.list(state="unknown")}
    waiting = await inbox(drive, saver)
    assert {f.effect_id for f in waiting} == unknown != set()
    assert all(f.question["effect"] == f.effect_id for f in waiting)
    await same_as_state(drive, saver, graph, "thread")

    first, *others = waiting
    answer = {"effect": first.effect_id, "decision": "happened", "result": "paid before"}
    await drive.invoke(graph, Command(resume={first.interrupt_id: answer}), thread())

    left = await inbox(drive, saver)
    assert [f.effect_id for f in left] == [f.effect_id for f in others]
    for found in left:
        answer = {"effect": found.effect_id, "decision": "retry"}
        await drive.invoke(graph, Command(resume={found.interrupt_id: answer}), thread())
    assert await inbox(drive, saver) == []


async def test_question_of_a_graph_that_mentions_an_effect_does_not_name_it(
    saver: DurableSaver, drive: Drive
) -> None:
    log = saver.effects
    with log.effect("pay", key="k") as e:
        e.issue()
        e.complete()

    def node(state: Any) -> dict[str, Any]:
        return {"trail": [interrupt({"effect": e.effect_id, "question": "Is this one right?"})]}

    builder = StateGraph(Steps)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    await drive.invoke(builder.compile(checkpointer=saver), {"trail": []}, thread())
    [found] = await inbox(drive, saver)
    assert (found.question["effect"], found.effect_id) == (e.effect_id, None)


async def test_question_of_an_effect_decided_elsewhere_stays(saver: DurableSaver, drive: Drive) -> None:
    graph = paying(saver, drive, ("only",))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, {"trail": []}, thread())
    await drive.invoke(graph, None, thread())
    [found] = await inbox(drive, saver)
    assert found.effect_id is not None
    saver.effects.resolve(found.effect_id, Happened("paid"))
    assert await same_as_state(drive, saver, graph, "thread") == [found.question]
    result = await drive.invoke(graph, None, thread())
    assert result["trail"] == ["paid"]
    assert await inbox(drive, saver) == []


async def test_question_asked_again_keeps_its_age(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    [first] = await inbox(drive, saver)
    await drive.invoke(graph, None, thread())
    [again] = await inbox(drive, saver)
    assert again.asked_at == first.asked_at
    assert again.age > first.age
