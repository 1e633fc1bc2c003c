"""Processes killed in the middle of a run, and the run going on in another process."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import chain, delta_chain, fan_out, ignore
from tests.acceptance.workers import Request, recorded


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Poll, because a worker's background save sends no signal when it is done."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def request_to(conninfo: str, tmp_path: Path, drive: Drive) -> Callable[..., Request]:
    def make(graph: str, **options: object) -> Request:
        return Request(graph, conninfo, str(tmp_path / "record"), drive.asynchronous, **options)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("graph", "durability"), [("chain", "sync"), ("chain", "async"), ("delta_chain", "async")]
)
def test_a_killed_run_goes_on_where_it_was(
    saver: DurableSaver, request_to: Callable[..., Request], graph: str, durability: str
) -> None:
    reader = (chain if graph == "chain" else delta_chain)(saver, ignore)
    work = request_to(graph, durability=durability, input={"trail": ["input"]}, stop_at="third")
    with work.standing_still() as worker:
        if durability == "async":
            wait_until(lambda: reader.get_state(thread()).next == ("third",))
    assert worker.returncode == -signal.SIGKILL
    stored = reader.get_state(thread())
    assert stored.next == ("third",)
    assert stored.values == {"trail": ["input", "first", "second"]}

    result = replace(work, input=None, stop_at=None).finish()

    assert result == {"trail": ["input", "first", "second", "third", "fourth"]}
    assert recorded(work.record) == ["first", "second", "third", "third", "fourth"]
    assert reader.get_state(thread()).values == result


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_finished_siblings_survive_the_kill(
    saver: DurableSaver, request_to: Callable[..., Request], durability: str
) -> None:
    reader = fan_out(saver, ignore)
    work = request_to(
        "fan_out", durability=durability, input={"items": [0, 1, 2, 3], "results": []}, stop_at="work 2"
    )

    def finished() -> int:
        return sum(task.result is not None for task in reader.get_state(thread()).tasks)

    with work.standing_still():
        wait_until(lambda: finished() == 3)

    result = replace(work, input=None, stop_at=None).finish()

    assert result["results"] == ["done 0", "done 1", "done 2", "done 3", "joined"]
    assert Counter(recorded(work.record)) == {
        "work 0": 1, "work 1": 1, "work 2": 2, "work 3": 1, "join": 1,
    }  # fmt: skip


def test_a_killed_run_in_exit_durability_has_stored_nothing(
    saver: DurableSaver, request_to: Callable[..., Request]
) -> None:
    reader = chain(saver, ignore)
    work = request_to("chain", durability="exit", input={"trail": ["input"]}, stop_at="third")
    with work.standing_still():
        pass
    assert list(saver.list(thread())) == []
    assert reader.get_state(thread()).values == {}

    result = replace(work, stop_at=None).finish()  # all over again, from the input

    assert result == {"trail": ["input", "first", "second", "third", "fourth"]}
    assert recorded(work.record) == ["first", "second", "third", "first", "second", "third", "fourth"]
    assert [snapshot.metadata["step"] for snapshot in reader.get_state_history(thread())] == [4]  # type: ignore[index]


@pytest.mark.context
def test_killed_inside_a_subgraph(saver: DurableSaver, request_to: Callable[..., Request]) -> None:
    work = request_to("nested", input={"trail": []}, stop_at="inner_ask")
    with work.standing_still():
        pass

    result = replace(work, input=None, stop_at=None).finish()
    assert result["trail"] == ["outer_first"]
    result = replace(work, input=None, stop_at=None, resume="yes").finish()

    assert result["trail"] == [
        "outer_first", "middle_first", "inner_first", "inner_ask: yes", "outer_last",
    ]  # fmt: skip
    assert Counter(recorded(work.record)) == {
        "outer_first": 1, "middle_first": 1, "inner_first": 1, "inner_ask": 3, "outer_last": 1,
    }  # fmt: skip


@pytest.mark.context
def test_a_killed_workflow_keeps_its_finished_tasks(
    saver: DurableSaver, request_to: Callable[..., Request]
) -> None:
    work = request_to("workflow", input=7, stop_at="check 14")
    with work.standing_still():
        # The finished task's result is saved while the next task runs.
        wait_until(lambda: any(found.pending_writes for found in saver.list(thread())))

    result = replace(work, input=None, stop_at=None).finish()

    assert result == {"twice": 14, "total": 14}
    assert recorded(work.record) == ["run", "double 7", "check 14", "run", "check 14"]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_killed_again_and_again(
    saver: DurableSaver, request_to: Callable[..., Request], durability: str
) -> None:
    work = request_to("long_chain", durability=durability, input={"trail": []}, kill_at=4)
    names = [f"step {number:02}" for number in range(12)]
    kills = 0
    while True:
        with work.start() as worker:
            output, _ = worker.communicate(timeout=60)
        if worker.returncode == 0:
            break
        assert worker.returncode == -signal.SIGKILL
        kills += 1
        # Under async durability not even the input needs to be stored when the first kill comes.
        head = saver.get_tuple(thread())
        work = replace(work, input=None if head else {"trail": []}, kill_at=9 if kills == 1 else None)
    assert kills == 2
    assert f'"{names[-1]}"' in output
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"]["trail"] == names
    runs = Counter(recorded(work.record))
    assert set(runs) == set(names)
    if durability == "sync":  # every kill repeats the one step that it hit
        assert sum(runs.values()) == len(names) + kills
