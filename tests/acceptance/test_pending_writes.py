"""What finished tasks wrote is kept when their siblings fail, applied in one order whatever came first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Graph, NodeError, Record, Runs, Steps, branches, fan_out, ignore


async def test_sent_tasks_that_finished_do_not_run_again(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs("work 1", "work 3")
    graph = fan_out(saver, runs)
    given = {"items": [0, 1, 2, 3, 4], "results": []}
    with pytest.raises(NodeError):
        await drive.invoke(graph, given, thread())
    finished = {t.path[1]: t.result for t in (await drive.state(graph, thread())).tasks if t.result}
    runs_before = Counter(runs.names)
    attempts = 1
    while (await drive.state(graph, thread())).next and attempts < 4:
        try:
            result = await drive.invoke(graph, None, thread())
        except NodeError:
            attempts += 1
    assert attempts <= 2
    assert result["results"] == ["done 0", "done 1", "done 2", "done 3", "done 4", "joined"]
    after = Counter(runs.names)
    for item in finished:
        assert after[f"work {item}"] == runs_before[f"work {item}"]
    assert after["join"] == 1
    assert after["work 1"] + after["work 3"] >= 4


class Fail:
    """Fails the middle branch, once its siblings have finished and their writes are stored."""

    def __init__(self, saver: DurableSaver) -> None:
        self.saver = saver
        self.runs = Runs()
        self.failed = False

    def __call__(self, name: str) -> None:
        self.runs(name)
        if name == "middle" and not self.failed:
            self.failed = True
            deadline = time.monotonic() + 20
            while len({w[0] for w in self._pending()}) < 2:  # the round trip to the database is the wait
                assert time.monotonic() < deadline
            raise NodeError(name)

    def _pending(self) -> list[Any]:
        found = self.saver.get_tuple(thread())
        return list(found.pending_writes or []) if found else []


async def test_the_failure_is_stored_beside_the_results(saver: DurableSaver, drive: Drive) -> None:
    fail = Fail(saver)
    graph = branches(saver, fail)
    with pytest.raises(NodeError):
        await drive.invoke(graph, {"trail": []}, thread())
    state = await drive.state(graph, thread())
    by_name = {t.name: t for t in state.tasks}
    assert by_name["left"].result == {"trail": ["left"]}
    assert by_name["right"].result == {"trail": ["right"]}
    assert "NodeError" in str(by_name["middle"].error)
    assert by_name["middle"].result is None
    result = await drive.invoke(graph, None, thread())
    assert result == {"trail": ["left", "middle", "right", "last"]}
    assert Counter(fail.runs.names) == {"left": 1, "middle": 2, "right": 1, "last": 1}


def in_turn(saver: DurableSaver, record: Record, order: list[str]) -> Graph:
    """Three branches that finish in the given order; the last of them fails at first."""
    finished = {name: threading.Event() for name in order}
    failed = threading.Event()

    def branch(name: str) -> Any:
        def node(state: Steps) -> dict[str, Any]:
            record(name)
            place = order.index(name)
            if place > 0:
                assert finished[order[place - 1]].wait(20)
            finished[name].set()
            if name == order[-1] and not failed.is_set():
                failed.set()
                raise NodeError(name)
            return {"trail": [f"{name} 1", f"{name} 2"]}

        return node

    builder = StateGraph(Steps)
    for name in sorted(order):
        builder.add_node(name, branch(name))
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("order", [["c", "b", "a"], ["b", "c", "a"], ["a", "b", "c"]])
async def test_results_join_in_the_order_of_tasks_not_of_time(
    saver: DurableSaver, drive: Drive, order: list[str]
) -> None:
    graph = in_turn(saver, ignore, order)
    with pytest.raises(NodeError):
        await drive.invoke(graph, {"trail": []}, thread())
    result = await drive.invoke(graph, None, thread())
    assert result == {"trail": ["a 1", "a 2", "b 1", "b 2", "c 1", "c 2"]}


async def test_a_task_that_fails_twice_shows_its_last_error(saver: DurableSaver, drive: Drive) -> None:
    errors = iter(["first fault", "second fault"])

    def record(name: str) -> None:
        if name == "last":
            raise NodeError(next(errors))

    graph = branches(saver, record)
    for message in ("first fault", "second fault"):
        with pytest.raises(NodeError, match=message):
            await drive.invoke(graph, None if message[0] == "s" else {"trail": []}, thread())
        [failed] = (await drive.state(graph, thread())).tasks
        assert message in str(failed.error)
