"""Workflows of the functional API: entrypoints, tasks, and the state a run saves for the next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.graphs import NodeError, Runs, ignore, workflow


@pytest.mark.context
async def test_previous_is_the_value_the_last_run_saved(saver: DurableSaver, drive: Drive) -> None:
    graph = workflow(saver, ignore)
    results = [await drive.invoke(graph, number, thread()) for number in (1, 2, 3)]
    assert results == [
        {"twice": 2, "total": 2},
        {"twice": 4, "total": 6},
        {"twice": 6, "total": 12},
    ]
    assert await drive.invoke(graph, 1, thread("another")) == {"twice": 2, "total": 2}


@pytest.mark.context
async def test_a_finished_task_does_not_run_again(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs("check 14")
    graph = workflow(saver, runs)
    with pytest.raises(NodeError):
        await drive.invoke(graph, 7, thread())
    assert await drive.invoke(graph, None, thread()) == {"twice": 14, "total": 14}
    assert Counter(runs.names) == {"run": 2, "double 7": 1, "check 14": 2}


@pytest.mark.context
async def test_a_workflow_resumes_after_an_interrupt(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = workflow(saver, runs)
    await drive.invoke(graph, 5, thread())
    await drive.invoke(graph, 0, thread())
    assert [i.value for i in interrupts(await drive.state(graph, thread()))] == ["how many?"]
    assert await drive.invoke(graph, Command(resume=3), thread()) == {"twice": 0, "total": 13}
    assert runs.names.count("double 0") == 1
    assert runs.names.count("check 0") == 1


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.context
async def test_finished_parallel_tasks_do_not_run_again(
    saver: DurableSaver, drive: Drive, durability: str
) -> None:
    runs = Runs("square 4")

    @task
    def square(number: int) -> int:
        runs(f"square {number}")
        return number * number

    @entrypoint(checkpointer=saver)
    def squares(count: int) -> list[int]:
        return [future.result() for future in [square(number) for number in range(count)]]

    with pytest.raises(NodeError):
        await drive.invoke(squares, 6, thread(), durability=durability)
    expected = [0, 1, 4, 9, 16, 25]
    assert await drive.invoke(squares, None, thread(), durability=durability) == expected
    assert runs.names.count("square 4") == 2
    # The first four were awaited before the failure was met, so their results are stored.
    assert all(runs.names.count(f"square {number}") == 1 for number in range(4))


@pytest.mark.context
async def test_async_tasks_are_saved(saver: DurableSaver) -> None:
    runs = Runs()

    @task
    async def greet(name: str) -> str:
        runs(name)
        return f"hello {name}"

    @entrypoint(checkpointer=saver)
    async def greetings(names: list[str], *, previous: Any = None) -> list[str]:
        return [*(previous or []), *[await greet(name) for name in names]]

    assert await greetings.ainvoke(["a", "b"], thread()) == ["hello a", "hello b"]
    assert await greetings.ainvoke(["c"], thread()) == ["hello a", "hello b", "hello c"]
    assert runs.names == ["a", "b", "c"]
