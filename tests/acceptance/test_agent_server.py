"""What a graph stores behind the Agent Server's adapter, which leaves delta channels to the base class's walk."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from langgraph_durable import DurableSaver, ParentPruned
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import CHAIN, Frequent, Sparse, chain, delta_chain, ignore
from tests.adapter import Adapter


@pytest.fixture
def served() -> Drive:
    """The Agent Server calls async methods only."""
    return Drive(asynchronous=True)


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("state", [Sparse, Frequent])
async def test_no_delta_is_lost_after_a_prune(
    saver: DurableSaver, served: Drive, state: type[Any], durability: str
) -> None:
    adapter = Adapter(saver)
    graph, own = delta_chain(adapter, ignore, state), delta_chain(saver, ignore, state)
    expected: list[str] = []
    for number in range(4):
        expected += [f"input {number}", *CHAIN]
        given = {"trail": [f"input {number}"]}
        assert await served.invoke(graph, given, thread(), durability=durability) == {"trail": expected}
        if number % 2:
            await adapter.aprune(["thread"], strategy="keep_latest")
            assert len(await served.history(graph, thread())) == 1
        for reader in (graph, own):
            assert (await served.state(reader, thread())).values == {"trail": expected}


async def test_no_delta_is_lost_after_a_run_is_deleted(saver: DurableSaver, served: Drive) -> None:
    adapter = Adapter(saver)
    graph = delta_chain(adapter, ignore)
    runs = [str(uuid4()) for _ in range(3)]
    expected: list[str] = []
    for number, run in enumerate(runs):
        expected += [f"input {number}", *CHAIN]
        config = thread() | {"metadata": {"run_id": run}}
        assert await served.invoke(graph, {"trail": [f"input {number}"]}, config) == {"trail": expected}
        if number:
            await adapter.adelete_for_runs([runs[number - 1]])
            for reader in (graph, delta_chain(saver, ignore)):
                assert (await served.state(reader, thread())).values == {"trail": expected}


async def test_no_run_starts_from_what_is_left_of_a_pruned_checkpoint(
    saver: DurableSaver, drive: Drive
) -> None:
    graph = delta_chain(saver, ignore)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    state = await drive.state(graph, thread())
    saver.prune(["thread"])
    pruned = (await drive.state(graph, thread())).parent_config
    assert pruned is not None
    assert pruned == state.parent_config
    left = await drive.state(graph, pruned)
    assert left.next == ()
    assert left.metadata == {"pruned": True}
    name = pruned["configurable"]["checkpoint_id"]
    before = [t.config for t in saver.list(thread())]
    for input_ in (None, {"trail": ["more"]}):
        with pytest.raises(ParentPruned, match=name):
            await drive.invoke(graph, input_, pruned)
    assert [t.config for t in saver.list(thread())] == before
    assert (await drive.state(graph, thread())).values == state.values


async def test_a_checkpoint_that_nothing_is_replayed_from_is_gone(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    pruned = (await drive.history(graph, thread()))[1].config
    saver.prune(["thread"])
    assert saver.get_tuple(pruned) is None
    assert (await drive.state(graph, pruned)).values == {}
