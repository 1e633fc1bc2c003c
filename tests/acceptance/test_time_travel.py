"""Walking a thread's history, replaying from its middle, and forking it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.types import Command, Overwrite, StateSnapshot, StateUpdate
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, checkpoint_id, interrupts, thread
from tests.acceptance.graphs import CHAIN, Runs, ask, chain, delta, delta_chain, extend, fan_out, ignore, loop


def at_next(history: list[StateSnapshot], node: str) -> StateSnapshot:
    return next(snapshot for snapshot in history if snapshot.next == (node,))


async def test_the_walk_of_a_history(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    history = await drive.history(graph, thread())
    assert [s.next for s in history] == [(), ("fourth",), ("third",), ("second",), ("first",), ("__start__",)]
    assert [len(s.values.get("trail", [])) for s in history] == [5, 4, 3, 2, 1, 0]
    for newer, older in pairwise(history):
        assert newer.parent_config == older.config
    assert history[-1].parent_config is None
    for snapshot in history:
        assert await drive.state(graph, snapshot.config) == snapshot
    ids = [checkpoint_id(s) for s in history]
    assert [checkpoint_id(s) for s in await drive.history(graph, thread(), limit=2)] == ids[:2]
    before = await drive.history(graph, thread(), before=history[2].config)
    assert [checkpoint_id(s) for s in before] == ids[3:]
    inputs = await drive.history(graph, thread(), filter={"source": "input"})
    assert [checkpoint_id(s) for s in inputs] == ids[-1:]


async def test_replay_runs_what_came_after(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = chain(saver, runs)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    past = at_next(await drive.history(graph, thread()), "third")
    result = await drive.invoke(graph, None, past.config)
    assert result == {"trail": ["input", *CHAIN]}
    assert runs.names[4:] == ["third", "fourth"]
    history = await drive.history(graph, thread())
    assert len(history) > 6
    assert (await drive.state(graph, past.config)).values == past.values
    assert (await drive.state(graph, thread())).values == result


@pytest.mark.context
async def test_replay_asks_again(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    await drive.invoke(graph, Command(resume="one"), thread())
    past = at_next(await drive.history(graph, thread()), "ask")
    await drive.invoke(graph, None, past.config)
    assert [i.value for i in interrupts(await drive.state(graph, thread()))] == ["ask?0"]
    result = await drive.invoke(graph, Command(resume="two"), thread())
    assert result == {"trail": ["before", "ask: two", "after"]}


async def test_fork_by_update(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = chain(saver, runs)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    history = await drive.history(graph, thread())
    past = at_next(history, "third")
    fork = await drive.update(graph, past.config, {"trail": ["forked"]})
    forked = await drive.state(graph, fork)
    assert forked.values == {"trail": ["input", "first", "second", "forked"]}
    assert forked.next == ("third",)
    assert forked.metadata is not None
    assert forked.metadata["source"] == "update"
    assert forked.parent_config == past.config
    result = await drive.invoke(graph, None, fork)
    assert result == {"trail": ["input", "first", "second", "forked", "third", "fourth"]}
    assert (await drive.state(graph, thread())).values == result
    # The branch that was left is as it was.
    for snapshot in history:
        assert await drive.state(graph, snapshot.config) == snapshot


async def test_two_forks_of_one_checkpoint_do_not_mix(saver: DurableSaver, drive: Drive) -> None:
    for graph in (chain(saver, ignore), delta_chain(saver, ignore)):
        config = thread(graph.__class__.__name__ + str(id(graph)))
        await drive.invoke(graph, {"trail": []}, config)
        past = at_next(await drive.history(graph, config), "third")
        forks = [await drive.update(graph, past.config, {"trail": [name]}) for name in ("one", "two")]
        results = [await drive.invoke(graph, None, fork) for fork in forks]
        assert results == [{"trail": ["first", "second", name, "third", "fourth"]} for name in ("one", "two")]
        ends = [s.values["trail"] for s in await drive.history(graph, config) if not s.next]
        assert sorted(ends) == sorted([list(CHAIN), *(r["trail"] for r in results)])


class Every(TypedDict):
    """A snapshot at every update, and a channel without any."""

    trail: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1)]
    other: int


@pytest.mark.context
async def test_what_a_late_answer_writes_is_not_in_the_other_branch(
    saver: DurableSaver, drive: Drive
) -> None:
    graph = delta(saver, ignore, Every)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    asked = await drive.state(graph, thread())
    await drive.invoke(graph, {"other": 1}, thread())  # the question is dropped, and the channel not written
    before = await drive.history(graph, thread())
    await drive.invoke(graph, Command(resume="late"), asked.config)
    after = {checkpoint_id(s): s.values for s in await drive.history(graph, thread())}
    assert [after[checkpoint_id(s)] for s in before] == [s.values for s in before]


async def test_update_as_node(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = chain(saver, runs)
    config = await drive.update(graph, thread(), {"trail": ["pretended"]}, "third")
    state = await drive.state(graph, config)
    assert state.next == ("fourth",)
    assert await drive.invoke(graph, None, thread()) == {"trail": ["pretended", "fourth"]}
    assert runs.names == ["fourth"]
    past = at_next(await drive.history(graph, thread()), "fourth")
    ended = await drive.update(graph, past.config, None, "__end__")
    assert (await drive.state(graph, ended)).next == ()
    # What the skipped node wrote before is applied: ending a run clears its tasks, and keeps their writes.
    assert (await drive.state(graph, ended)).values == {"trail": ["pretended", "fourth"]}


@pytest.mark.context
async def test_update_while_a_question_is_open(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    await drive.update(graph, thread(), {"trail": ["corrected"]}, "before")
    await drive.invoke(graph, None, thread())
    result = await drive.invoke(graph, Command(resume="yes"), thread())
    assert result == {"trail": ["before", "corrected", "ask: yes", "after"]}


async def test_bulk_update(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    config = await drive.bulk_update(
        graph,
        thread(),
        [
            [StateUpdate({"trail": ["input"]}, "__input__")],
            [StateUpdate({"trail": ["one"]}, "first")],
            [StateUpdate({"trail": ["two"]}, "second")],
        ],
    )
    assert (await drive.state(graph, config)).next == ("third",)
    assert await drive.invoke(graph, None, thread()) == {"trail": ["one", "two", "third", "fourth"]}
    sources = [s.metadata and s.metadata["source"] for s in await drive.history(graph, thread())]
    assert sources[-3:] == ["update", "update", "input"]


async def test_bulk_update_of_parallel_tasks(saver: DurableSaver, drive: Drive) -> None:
    graph = fan_out(saver, ignore)
    await drive.invoke(graph, {"items": [7], "results": []}, thread())
    updates = [StateUpdate({"results": [name]}, "work") for name in ("a", "b")]
    config = await drive.bulk_update(graph, thread(), [updates])
    assert (await drive.state(graph, config)).values["results"] == ["done 7", "joined", "a", "b"]


async def test_overwrite(saver: DurableSaver, drive: Drive) -> None:
    for graph in (chain(saver, ignore), delta_chain(saver, ignore)):
        config = thread(f"thread {id(graph)}")
        await drive.invoke(graph, {"trail": ["old"]}, config)
        await drive.update(graph, config, {"trail": Overwrite(["new"])}, "second")
        assert (await drive.state(graph, config)).values == {"trail": ["new"]}
        assert await drive.invoke(graph, None, config) == {"trail": ["new", "third", "fourth"]}
        given: dict[str, Any] = {"trail": Overwrite(["newer"])}
        assert await drive.invoke(graph, given, config) == {"trail": ["newer", *CHAIN]}
        assert (await drive.state(graph, config)).values == {"trail": ["newer", *CHAIN]}


async def test_replay_of_a_loop(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = loop(saver, runs)
    await drive.invoke(graph, {"trail": []}, thread())
    assert len(runs.names) == 5
    history = await drive.history(graph, thread())
    for snapshot in history[1:4]:
        runs.names.clear()
        left = 5 - len(snapshot.values["trail"])
        result = await drive.invoke(graph, None, snapshot.config)
        assert result["trail"] == [f"turn {number}" for number in range(5)]
        assert len(runs.names) == left
