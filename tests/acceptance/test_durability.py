"""The three durability modes: what is stored while a run goes on, and after it."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, answers, interrupts, thread
from tests.acceptance.graphs import (
    CHAIN,
    Frequent,
    NodeError,
    Runs,
    Sparse,
    ask,
    branches,
    chain,
    delta,
    delta_chain,
    ignore,
    parallel_asks,
)
from tests.acceptance.subgraphs import nested


class Watch:
    """Looks into the database each time a node starts."""

    def __init__(self, saver: DurableSaver) -> None:
        self.saver = saver
        self.steps: list[int | None] = []

    def __call__(self, name: str) -> None:
        found = self.saver.get_tuple(thread())
        self.steps.append(found.metadata["step"] if found else None)


async def test_sync_stores_each_step_before_the_next_starts(saver: DurableSaver, drive: Drive) -> None:
    watch = Watch(saver)
    await drive.invoke(chain(saver, watch), {"trail": []}, thread(), durability="sync")
    # The input may still be on its way when the first node starts; a later node finds its predecessor's step.
    assert watch.steps[1:] == [1, 2, 3]


async def test_async_has_stored_every_step_when_the_run_ends(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    await drive.invoke(graph, {"trail": []}, thread(), durability="async")
    history = await drive.history(graph, thread())
    assert [s.metadata and s.metadata["step"] for s in history] == [4, 3, 2, 1, 0, -1]


async def test_exit_stores_nothing_while_the_run_goes_on(saver: DurableSaver, drive: Drive) -> None:
    watch = Watch(saver)
    graph = chain(saver, watch)
    await drive.invoke(graph, {"trail": ["input"]}, thread(), durability="exit")
    assert watch.steps == [None, None, None, None]
    [only] = await drive.history(graph, thread())
    assert only.values == {"trail": ["input", *CHAIN]}
    assert only.metadata is not None
    assert only.metadata["step"] == 4
    assert only.next == ()


async def test_exit_run_after_run(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    for number in range(3):
        await drive.invoke(graph, {"trail": [f"input {number}"]}, thread(), durability="exit")
    history = await drive.history(graph, thread())
    assert len(history) == 3
    assert len(history[0].values["trail"]) == 15
    assert history[0].parent_config == history[1].config
    assert history[1].parent_config == history[2].config
    assert history[2].parent_config is None or history[2].parent_config not in [s.config for s in history]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.context
async def test_interrupt_and_resume(saver: DurableSaver, drive: Drive, durability: str) -> None:
    runs = Runs()
    graph = ask(saver, runs)
    await drive.invoke(graph, {"trail": ["input"]}, thread(), durability=durability)
    state = await drive.state(graph, thread())
    assert state.next == ("ask",)
    assert [i.value for i in interrupts(state)] == ["ask?0"]
    result = await drive.invoke(graph, Command(resume="yes"), thread(), durability=durability)
    assert result == {"trail": ["input", "before", "ask: yes", "after"]}
    assert runs.names == ["before", "ask", "ask", "after"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.context
async def test_parallel_interrupts_answered_one_at_a_time(
    saver: DurableSaver, drive: Drive, durability: str
) -> None:
    runs = Runs()
    graph = parallel_asks(saver, runs)
    await drive.invoke(graph, {"trail": []}, thread(), durability=durability)
    for name in ("bob", "alice"):
        state = await drive.state(graph, thread())
        resume: Command[Any] = Command(resume=answers(state, **{name: "yes"}))
        result = await drive.invoke(graph, resume, thread(), durability=durability)
    assert result == {"trail": ["alice: yes", "bob: yes", "sibling", "after"]}
    assert runs.names.count("sibling") == 1
    assert runs.names.count("after") == 1


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_failed_step_is_repeated_alone(saver: DurableSaver, drive: Drive, durability: str) -> None:
    runs = Runs("last")
    graph = branches(saver, runs)
    with pytest.raises(NodeError):
        await drive.invoke(graph, {"trail": []}, thread(), durability=durability)
    assert (await drive.state(graph, thread())).next == ("last",)
    result = await drive.invoke(graph, None, thread(), durability=durability)
    assert result == {"trail": ["left", "middle", "right", "last"]}
    assert runs.names[-2:] == ["last", "last"]
    assert len(runs.names) == 5


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.context
async def test_interrupt_in_nested_subgraphs(saver: DurableSaver, drive: Drive, durability: str) -> None:
    runs = Runs()
    graph = nested(saver, runs)
    await drive.invoke(graph, {"trail": []}, thread(), durability=durability)
    state = await drive.state(graph, thread(), subgraphs=True)
    assert [i.value for i in interrupts(state)] == ["inner_ask?0"]
    result = await drive.invoke(graph, Command(resume="yes"), thread(), durability=durability)
    assert result["trail"][-2:] == ["inner_ask: yes", "outer_last"]
    assert runs.names.count("outer_first") == 1
    assert runs.names.count("outer_last") == 1


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("state", [Sparse, Frequent])
async def test_delta_channel_over_several_runs(
    saver: DurableSaver, drive: Drive, durability: str, state: type[Any]
) -> None:
    graph = delta_chain(saver, ignore, state)
    expected: list[str] = []
    for number in range(4):
        expected += [f"input {number}", *CHAIN]
        given = {"trail": [f"input {number}"]}
        assert await drive.invoke(graph, given, thread(), durability=durability) == {"trail": expected}
        assert (await drive.state(graph, thread())).values == {"trail": expected}
    history = await drive.history(graph, thread())
    for snapshot in history:  # each is a prefix of the trail, and older ones are no longer
        trail = snapshot.values.get("trail", [])
        assert trail == expected[: len(trail)]
    lengths = [len(snapshot.values.get("trail", [])) for snapshot in history]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == len(expected)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("state", [Sparse, Frequent])
@pytest.mark.context
async def test_delta_channel_with_interrupt(
    saver: DurableSaver, drive: Drive, durability: str, state: type[Any]
) -> None:
    runs = Runs()
    graph = delta(saver, runs, state)
    for answer in ("one", "two"):
        await drive.invoke(graph, {"trail": ["input"]}, thread(), durability=durability)
        assert (await drive.state(graph, thread())).next == ("ask",)
        result = await drive.invoke(graph, Command(resume=answer), thread(), durability=durability)
    turn = ["input", "before", "left", "right"]
    assert result == {"trail": [*turn, "ask: one", *turn, "ask: two"]}
    assert (await drive.state(graph, thread())).values == result
    assert runs.names.count("before") == 2


async def test_modes_may_change_between_runs(saver: DurableSaver, drive: Drive) -> None:
    graph = delta_chain(saver, ignore)
    for durability in ("exit", "sync", "exit", "async", "exit"):
        await drive.invoke(graph, {"trail": [durability]}, thread(), durability=durability)
    trail = (await drive.state(graph, thread())).values["trail"]
    assert trail[::5] == ["exit", "sync", "exit", "async", "exit"]
    assert len(trail) == 25
