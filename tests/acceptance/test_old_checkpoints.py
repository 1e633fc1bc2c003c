"""Checkpoints of format v<4, which keep their pending sends in their parent's writes."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Send

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Runs, fan_out

PARENT = "1f000000-0000-6000-8000-000000000001"
CHILD = "1f000000-0000-6000-8000-000000000002"


def old_checkpoint(checkpoint_id: str, version: int, values: dict[str, Any]) -> Checkpoint:
    channels = {"__start__": 1, "items": 2, "results": 2}
    return {
        "v": version,
        "id": checkpoint_id,
        "ts": "2025-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": {name: f"{n:032}.0.5" for name, n in channels.items()},
        "versions_seen": {"__input__": {}, "__start__": {"__start__": f"{1:032}.0.5"}},
        "updated_channels": None,
    }


@pytest.fixture
def old_thread(saver: DurableSaver, version: int) -> DurableSaver:
    """A thread as an old LangGraph left it: the parent's tasks sent, the child has not run what they sent."""
    values = {"items": [0], "results": []}
    first = saver.put(
        thread(checkpoint_ns=""),
        old_checkpoint(PARENT, version, values),
        {"source": "input", "step": -1, "parents": {}},
        {"items": f"{2:032}.0.5", "results": f"{2:032}.0.5"},
    )
    # Stored in another order than the one they have: task_path, task_id, idx.
    for task_id, path, items in (("b", "~2", [5]), ("b", "~1", [2, 3, 4]), ("a", "~2", [1]), ("a", "", [0])):
        writes = [(TASKS, Send("work", {"item": item})) for item in items]
        saver.put_writes(first, writes, f"{task_id}{path}", path)
    saver.put_writes(first, [("results", ["not a send"])], "c", "~0")
    saver.put(
        first,
        old_checkpoint(CHILD, version, values),
        {"source": "loop", "step": 0, "parents": {}},
        {},
    )
    return saver


IN_ORDER = [0, 2, 3, 4, 1, 5]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_sends_move_into_the_child(old_thread: DurableSaver) -> None:
    for found in (old_thread.get_tuple(thread()), next(old_thread.list(thread()))):
        assert found is not None
        assert found.checkpoint["id"] == CHILD
        sends = found.checkpoint["channel_values"][TASKS]
        assert [send.arg["item"] for send in sends] == IN_ORDER
        assert found.checkpoint["channel_versions"][TASKS] == f"{2:032}.0.5"
        assert found.pending_writes == []


@pytest.mark.parametrize("version", [3])
async def test_a_graph_goes_on_from_it(old_thread: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = fan_out(old_thread, runs)
    state = await drive.state(graph, thread())
    assert state.next == ("work",) * 6
    result = await drive.invoke(graph, None, thread())
    assert result["results"] == [*(f"done {item}" for item in IN_ORDER), "joined"]
    assert runs.names.count("join") == 1
    assert len(runs.names) == 7
    assert (await drive.state(graph, thread())).next == ()


@pytest.mark.parametrize("version", [4])
def test_a_new_checkpoint_takes_nothing_from_its_parent(old_thread: DurableSaver) -> None:
    found = old_thread.get_tuple(thread())
    assert found is not None
    assert TASKS not in found.checkpoint["channel_values"]


@pytest.mark.parametrize("version", [3])
async def test_sends_stay_when_their_parent_is_pruned(old_thread: DurableSaver, drive: Drive) -> None:
    for _ in range(2):
        old_thread.prune(["thread"])
        found = old_thread.get_tuple(thread())
        assert found is not None
        assert [send.arg["item"] for send in found.checkpoint["channel_values"][TASKS]] == IN_ORDER
    result = await drive.invoke(fan_out(old_thread, Runs()), None, thread())
    assert result["results"] == [*(f"done {item}" for item in IN_ORDER), "joined"]
    old_thread.prune(["thread"])
    assert old_thread.prune(["thread"]).total.total_rows == 0
