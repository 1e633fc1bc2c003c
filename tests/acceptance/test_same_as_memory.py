"""The same script on this saver and on LangGraph's in-memory one gives the same histories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, StateSnapshot

from langgraph_durable import DurableSaver
from tests.acceptance import graphs, subgraphs
from tests.acceptance.driving import Drive, checkpoint_id, interrupts, thread
from tests.acceptance.graphs import Builder, Graph, NodeError, Runs

Script = Callable[[Drive, Graph], Awaitable[None]]

_MOST = 10
"""Answers or attempts a script may need; a saver that loses them would go on for ever."""


def normalized(snapshot: StateSnapshot, places: dict[str, int]) -> dict[str, Any]:
    """A snapshot without what is random: ids become places in the history."""

    def place(config: Any) -> int | None:
        return places[config["configurable"]["checkpoint_id"]] if config else None

    metadata = dict(snapshot.metadata or {})
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "metadata": {k: metadata.get(k) for k in ("source", "step", "counters_since_delta_snapshot")},
        "keys": sorted(metadata),
        "parent": place(snapshot.parent_config),
        "tasks": [
            {
                "name": t.name,
                "path": t.path,
                "error": str(t.error) if t.error else None,
                "interrupts": [i.value for i in t.interrupts],
                "result": t.result,
            }
            for t in snapshot.tasks
        ],
        "interrupts": [i.value for i in snapshot.interrupts],
    }


async def history(drive: Drive, graph: Graph, config: Any) -> list[dict[str, Any]]:
    snapshots = await drive.history(graph, config)
    places = {checkpoint_id(s): len(snapshots) - n for n, s in enumerate(snapshots)}
    for s in snapshots:  # exit durability may hang a checkpoint on one that no history shows
        if s.parent_config:
            places.setdefault(s.parent_config["configurable"]["checkpoint_id"], -1)
    return [normalized(s, places) for s in snapshots]


# --- scripts ---


def two_runs(*given: dict[str, Any], **options: Any) -> Script:
    async def script(drive: Drive, graph: Graph) -> None:
        for input_ in given:
            await drive.invoke(graph, input_, thread(), **options)

    return script


def with_answers(*given: dict[str, Any], **options: Any) -> Script:
    async def script(drive: Drive, graph: Graph) -> None:
        for input_ in given:
            await drive.invoke(graph, input_, thread(), **options)
            for _ in range(_MOST):
                if not (pending := interrupts(await drive.state(graph, thread()))):
                    break
                await drive.invoke(graph, Command(resume={pending[-1].id: "yes"}), thread(), **options)

    return script


def with_failures(input_: dict[str, Any], **options: Any) -> Script:
    async def script(drive: Drive, graph: Graph) -> None:
        with suppress(NodeError):
            await drive.invoke(graph, input_, thread(), **options)
        for _ in range(_MOST):
            if not (await drive.state(graph, thread())).next:
                break
            with suppress(NodeError):
                await drive.invoke(graph, None, thread(), **options)

    return script


async def forks(drive: Drive, graph: Graph) -> None:
    await drive.invoke(graph, {"trail": ["input"]}, thread())
    past = (await drive.history(graph, thread()))[2]
    await drive.invoke(graph, None, past.config)
    fork = await drive.update(graph, past.config, {"trail": ["forked"]})
    await drive.invoke(graph, None, fork)
    await drive.update(graph, thread(), {"trail": ["as first"]}, "first")
    await drive.invoke(graph, {"trail": ["input"]}, thread())


async def breakpoints(drive: Drive, graph: Graph) -> None:
    await drive.invoke(graph, {"trail": []}, thread(), interrupt_before=["second"])
    await drive.update(graph, thread(), {"trail": ["meanwhile"]})
    await drive.invoke(graph, None, thread(), interrupt_after=["third"])
    await drive.invoke(graph, None, thread())


TRAIL: dict[str, Any] = {"trail": ["input"]}
FAN: dict[str, Any] = {"items": [3, 1, 2], "results": []}
SHARED: dict[str, Any] = {"outer": [], "shared": ["input"]}

CASES: dict[str, tuple[Builder, tuple[str, ...], Script]] = {
    "chain": (graphs.chain, (), two_runs(TRAIL, TRAIL)),
    "chain, exit": (graphs.chain, (), two_runs(TRAIL, TRAIL, durability="exit")),
    "chain, failing": (graphs.chain, ("second", "fourth"), with_failures(TRAIL)),
    "chain, failing, exit": (graphs.chain, ("second",), with_failures(TRAIL, durability="exit")),
    "chain, forked": (graphs.chain, (), forks),
    "chain, breakpoints": (graphs.chain, (), breakpoints),
    "loop": (graphs.loop, (), two_runs({"trail": []})),
    "branches": (graphs.branches, (), two_runs(TRAIL, TRAIL)),
    "fan-out": (graphs.fan_out, (), two_runs(FAN, FAN)),
    "fan-out, questions": (graphs.ask_in_fan, (), with_answers(FAN)),
    "question": (graphs.ask, (), with_answers(TRAIL, TRAIL)),
    "two questions": (graphs.ask_twice, (), with_answers(TRAIL)),
    "questions at once": (graphs.parallel_asks, (), with_answers(TRAIL, TRAIL)),
    "questions at once, exit": (graphs.parallel_asks, (), with_answers(TRAIL, durability="exit")),
    "nested": (subgraphs.nested, (), with_answers(TRAIL, TRAIL)),
    "nested, own threads": (partial(subgraphs.nested, checkpointer=True), (), with_answers(TRAIL, TRAIL)),
    "subgraph": (subgraphs.subgraph_node, (), with_answers(SHARED, SHARED)),
    "subgraph, exit": (subgraphs.subgraph_node, (), with_answers(SHARED, durability="exit")),
    "delta": (graphs.delta, (), with_answers(TRAIL, TRAIL)),
    "delta, exit": (graphs.delta, (), with_answers(TRAIL, TRAIL, durability="exit")),
    "delta, snapshots": (graphs.frequent_delta, (), with_answers(TRAIL, TRAIL)),
    "delta, snapshots, exit": (graphs.frequent_delta, (), with_answers(TRAIL, TRAIL, durability="exit")),
    "delta, forked": (graphs.delta_chain, (), forks),
    "delta, failing": (graphs.delta_chain, ("third",), with_failures(TRAIL)),
    "retries": (graphs.retrying, ("flaky",), two_runs(TRAIL, TRAIL)),
    "deferred": (graphs.deferred, (), two_runs(TRAIL, TRAIL)),
    "caching": (graphs.caching, (), two_runs(TRAIL, TRAIL)),
}


def marked(name: str) -> Any:
    asks = "with_answers" in CASES[name][2].__qualname__
    return pytest.param(name, marks=pytest.mark.context if asks else ())


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
async def test_same_history(saver: DurableSaver, drive: Drive, name: str) -> None:
    build, failing, script = CASES[name]
    found = []
    for each in (InMemorySaver(), saver):
        runs = Runs(*failing)
        graph = build(each, runs)
        await script(drive, graph)
        namespaces: list[str] = []
        for stored in each.list(thread()):
            namespace = stored.config["configurable"]["checkpoint_ns"]
            if namespace and namespace not in namespaces:
                namespaces.append(namespace)
        # Namespaces hold task ids, which are random; sorted by depth and content they pair up.
        inner = [await history(drive, graph, thread(checkpoint_ns=ns)) for ns in namespaces]
        found.append(
            {
                "history": await history(drive, graph, thread()),
                "inner": sorted(inner, key=str),
                "runs": sorted(runs.names),
            }
        )
    assert found[0]["history"]
    assert found[1] == found[0]
