"""Questions that a run stops at, and answers that come later, from elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver
from langgraph_durable.errors import SaverClosedError
from tests.acceptance.driving import Drive, answers, interrupts, thread
from tests.acceptance.graphs import (
    Graph,
    Runs,
    Steps,
    ask,
    ask_in_fan,
    ask_twice,
    asking,
    chain,
    ignore,
    parallel_asks,
)
from tests.acceptance.workers import Request, recorded


@pytest.mark.context
async def test_answered_by_another_process(
    saver: DurableSaver, conninfo: str, tmp_path: Path, drive: Drive
) -> None:
    runs = Runs()
    graph = ask(saver, runs)
    result = await drive.invoke(graph, {"trail": ["input"]}, thread())
    assert [i.value for i in result["__interrupt__"]] == ["ask?0"]

    work = Request("ask", conninfo, str(tmp_path / "record"), drive.asynchronous, resume="yes")

    assert work.finish() == {"trail": ["input", "before", "ask: yes", "after"]}
    assert recorded(work.record) == ["ask", "after"]
    assert (await drive.state(graph, thread())).values["trail"][-1] == "after"


@pytest.mark.context
async def test_asked_and_answered_by_other_processes(
    saver: DurableSaver, conninfo: str, tmp_path: Path, drive: Drive
) -> None:
    record = str(tmp_path / "record")
    work = Request("parallel_asks", conninfo, record, drive.asynchronous, input={"trail": []})
    work.finish()
    state = await drive.state(parallel_asks(saver, ignore), thread())
    assert state.next == ("alice", "bob")
    assert [i.value for i in interrupts(state)] == ["alice?0", "bob?0"]

    result = replace(work, input=None, resume=answers(state, alice="a", bob="b")).finish()

    assert result == {"trail": ["alice: a", "bob: b", "sibling", "after"]}
    assert Counter(recorded(record)) == {"alice": 2, "bob": 2, "sibling": 1, "after": 1}


@pytest.mark.context
async def test_two_questions_of_one_node(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = ask_twice(saver, runs)
    await drive.invoke(graph, {"trail": []}, thread())
    first = interrupts(await drive.state(graph, thread()))
    result = await drive.invoke(graph, Command(resume="one"), thread())
    second = interrupts(await drive.state(graph, thread()))
    assert [i.value for i in first] == ["ask?0"]
    assert [i.value for i in second] == ["ask?1"]
    assert [i.value for i in result["__interrupt__"]] == ["ask?1"]
    result = await drive.invoke(graph, Command(resume="two"), thread())
    assert result == {"trail": ["before", "ask: one", "ask: two", "after"]}
    assert runs.names == ["before", "ask", "ask", "ask", "after"]
    assert interrupts(await drive.state(graph, thread())) == []


@pytest.mark.context
async def test_an_answer_and_an_update_at_once(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    command: Command[Any] = Command(resume="yes", update={"trail": ["update"]})
    result = await drive.invoke(graph, command, thread())
    assert result == {"trail": ["before", "update", "ask: yes", "after"]}


@pytest.mark.context
async def test_the_last_answer_is_kept_beside_what_the_node_wrote(saver: DurableSaver, drive: Drive) -> None:
    builder = StateGraph(Steps)
    builder.add_node("alice", asking("alice", ignore, times=2))
    builder.add_node("bob", asking("bob", ignore))
    builder.add_edge(START, "alice")
    builder.add_edge(START, "bob")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"trail": []}, thread())
    asked = await drive.state(graph, thread())
    for answer in ("one", "two"):
        given = answers(await drive.state(graph, thread()), alice=answer)
        await drive.invoke(graph, Command(resume=given), thread())
    last: Command[Any] = Command(resume=answers(await drive.state(graph, thread()), bob="b"))
    done = {"trail": ["alice: one", "alice: two", "bob: b"]}
    assert await drive.invoke(graph, last, thread()) == done
    # There the thread has moved on, so all run again, with the answers that they got.
    assert await drive.invoke(graph, last, asked.config) == done


@pytest.mark.context
async def test_an_answer_beside_an_update_survives_a_crash(conninfo: str, drive: Drive) -> None:
    def build(saver: DurableSaver, *, dies: bool) -> Graph:
        def node(state: Any) -> dict[str, Any]:
            said = [interrupt("one?"), interrupt("two?")]
            if dies:
                saver.close()  # nothing that comes now is stored
            return {"trail": said}

        builder = StateGraph(Steps)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        return builder.compile(checkpointer=saver)

    with DurableSaver.from_conn_string(conninfo) as saver:
        graph = build(saver, dies=True)
        await drive.invoke(graph, {"trail": []}, thread())
        await drive.invoke(graph, Command(resume="first", update={"trail": ["beside"]}), thread())
        with pytest.raises(SaverClosedError):
            await drive.invoke(
                graph, Command(resume="second", update={"trail": ["again"]}), thread(), durability="sync"
            )
    with DurableSaver.from_conn_string(conninfo) as saver:
        result = await drive.invoke(build(saver, dies=False), None, thread())
    assert result["trail"] == ["beside", "again", "first", "second"]


@pytest.mark.context
async def test_one_answer_for_two_questions_is_refused(saver: DurableSaver, drive: Drive) -> None:
    graph = parallel_asks(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        await drive.invoke(graph, Command(resume="whose?"), thread())
    state = await drive.state(graph, thread())
    assert len(interrupts(state)) == 2
    result = await drive.invoke(graph, Command(resume=answers(state, alice="a", bob="b")), thread())
    assert result["trail"] == ["alice: a", "bob: b", "sibling", "after"]


@pytest.mark.context
async def test_questions_of_sent_tasks(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = ask_in_fan(saver, runs)
    await drive.invoke(graph, {"items": [0, 1, 2], "results": []}, thread())
    state = await drive.state(graph, thread())
    assert [i.value for i in interrupts(state)] == [0, 1, 2]
    by_value = {i.value: i.id for i in interrupts(state)}
    await drive.invoke(graph, Command(resume={by_value[1]: "b"}), thread())
    state = await drive.state(graph, thread())
    assert state.next == ("work", "work")
    rest = {by_value[0]: "a", by_value[2]: "c"}
    result = await drive.invoke(graph, Command(resume=rest), thread())
    assert result["results"] == ["0: a", "1: b", "2: c", "joined"]
    assert runs.names.count("work 1") == 2
    assert runs.names.count("join") == 1


@pytest.mark.context
async def test_a_new_input_drops_the_question(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": ["first input"]}, thread())
    await drive.invoke(graph, {"trail": ["second input"]}, thread())
    state = await drive.state(graph, thread())
    assert len(interrupts(state)) == 1
    result = await drive.invoke(graph, Command(resume="yes"), thread())
    assert result["trail"] == ["first input", "before", "second input", "before", "ask: yes", "after"]


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_static_breakpoints(saver: DurableSaver, drive: Drive, where: str) -> None:
    runs = Runs()
    graph = chain(saver, runs, **{where: ["second", "third"]})
    stops = []
    result = await drive.invoke(graph, {"trail": []}, thread())
    while (state := await drive.state(graph, thread())).next:
        stops.append((state.next, len(runs.names)))
        assert state.values == {"trail": runs.names}
        result = await drive.invoke(graph, None, thread())
    before = [(("second",), 1), (("third",), 2)]
    after = [(("third",), 2), (("fourth",), 3)]
    assert stops == (before if where == "interrupt_before" else after)
    assert result == {"trail": ["first", "second", "third", "fourth"]}
    assert runs.names == ["first", "second", "third", "fourth"]


async def test_breakpoint_given_to_the_run(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = chain(saver, runs)
    await drive.invoke(graph, {"trail": []}, thread(), interrupt_before="*")
    assert runs.names == []
    await drive.invoke(graph, None, thread(), interrupt_after=["second"])
    assert runs.names == ["first", "second"]
    await drive.invoke(graph, None, thread())
    assert runs.names == ["first", "second", "third", "fourth"]


@pytest.mark.context
async def test_the_stored_question_is_the_one_returned(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    result = await drive.invoke(graph, {"trail": []}, thread())
    assert interrupts(await drive.state(graph, thread())) == list(result["__interrupt__"])
