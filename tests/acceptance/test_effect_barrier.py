"""The durability barrier: an effect begins after the writes that its call depends on are stored."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from langgraph_durable import DurableSaver, EffectError, effect
from langgraph_durable._checkpoints.known import WritesKey
from langgraph_durable.effects._identity.location import find_place
from langgraph_durable.effects._protocol import barrier, loops
from tests.acceptance.barrier_worker import Ledger, State, build
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_graphs import World
from tests.conftest import Databases

pytestmark = pytest.mark.context


@pytest.mark.parametrize("durability", ["async", "sync"])
@pytest.mark.parametrize("slow", ["not begun", "in flight"])
@pytest.mark.parametrize(
    "kind", ["task", "answer", "answer by id", "answer by id, scope", "answer to caller"]
)
async def test_a_killed_payment_finds_the_writes_that_it_depended_on(
    saver: DurableSaver, conninfo: str, drive: Drive, tmp_path: Path, kind: str, slow: str, durability: str
) -> None:
    """Otherwise the task decides anew, or the human is asked again, and something else is paid, too."""
    driven = "async" if drive.asynchronous else "sync"
    command = [sys.executable, "-m", "tests.acceptance.barrier_worker", kind, slow, durability, driven]
    command += [conninfo, str(tmp_path)]
    ended = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False, capture_output=True)
    assert ended.returncode == -9, ended.stderr.decode()
    ledger = Ledger(tmp_path)
    graph = build(kind, saver, ledger, asynchronous=drive.asynchronous)
    result = await drive.invoke(graph, None, thread())
    wanted = "choice-0" if kind == "task" else "5"
    assert result == (f"paid {wanted}" if kind == "task" else {"paid": f"paid {wanted}"})
    assert ledger.paid == [wanted]


async def test_effects_of_more_tasks_than_workers_do_not_wait_for_each_other(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The writes of a task that ended wait for a worker, while all workers wait for those writes."""

    @task
    @effect()
    def send(text: str) -> str:
        return world(text)

    @task
    @effect(name="send")
    async def asend(text: str) -> str:
        return world(text)

    @entrypoint(checkpointer=saver)
    def flow(texts: list[str]) -> list[str]:
        return [future.result() for future in [send(text) for text in texts]]

    @entrypoint(checkpointer=saver)
    async def aflow(texts: list[str]) -> list[str]:
        return list(await asyncio.gather(*(asend(text) for text in texts)))

    texts = [f"{number}" for number in range(12)]
    before = time.monotonic()
    config = {**thread(), "max_concurrency": 3}
    done = await drive.invoke(aflow if drive.asynchronous else flow, texts, config)  # type: ignore[arg-type]
    assert done == [f"did {text}" for text in texts]
    assert sorted(world.done) == sorted(texts)
    assert time.monotonic() - before < barrier._TIMEOUT


async def test_a_call_without_reachable_internals_waits_for_writes_in_flight(
    saver: DurableSaver, drive: Drive, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barrier, "find_loops", lambda call: [])
    writes = saver._context.known.writes
    graph = _sending(saver, drive, world)
    token = writes.begin(WritesKey("thread", "", "checkpoint", "another task"))
    seen: list[list[str]] = []

    def end() -> None:
        seen.append(list(world.done))
        writes.end(token)

    timer = threading.Timer(0.5, end)
    timer.start()
    assert await drive.invoke(graph, {}, thread("thread")) == {"paid": "did a"}
    timer.join()
    assert seen == [[]]


async def test_loops_are_found_in_nodes_with_a_timeout_and_in_subgraphs(
    saver: DurableSaver, drive: Drive
) -> None:
    found: list[int] = []

    def look() -> dict[str, str]:
        place = find_place()
        assert place is not None
        running = loops.find_loops(place.call)
        found.append(len(running))
        assert [loop.is_async for loop in running] == [drive.asynchronous] * len(running)
        return {"paid": "nothing"}

    async def alook(state: State) -> dict[str, str]:
        return look()

    inner = StateGraph(State)
    if drive.asynchronous:
        inner.add_node("node", alook, timeout=60)
    else:
        inner.add_node("node", lambda state: look())
    inner.add_edge(START, "node")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    await drive.invoke(outer.compile(checkpointer=saver), {}, thread())
    assert found == [2]


def test_loops_are_not_found_in_unexpected_internals() -> None:
    class Strange:
        config = None

    assert loops.find_loops(None) == []
    assert loops.find_loops(lambda: None) == []
    assert loops.find_loops(Strange()) == []


# --- requests that are never stored ---


def _sending(saver: Any, drive: Drive, world: World, **options: Any) -> Any:
    @effect(**options)
    def send(text: str) -> str:
        return world(text)

    @effect(**options)
    async def asend(text: str) -> str:
        return world(text)

    def node(state: State) -> dict[str, str]:
        return {"paid": send("a")}

    async def anode(state: State) -> dict[str, str]:
        return {"paid": await asend("a")}

    builder = StateGraph(State)
    builder.add_node("node", anode if drive.asynchronous else node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


async def test_a_log_beside_another_checkpointer_is_refused_at_once(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = _sending(InMemorySaver(), drive, world, log=saver.effects)
    before = time.monotonic()
    with pytest.raises(EffectError, match=r"checkpointer is InMemorySaver.*request-not-stored"):
        await drive.invoke(graph, {}, thread())
    assert time.monotonic() - before < 5
    assert world.done == []


async def test_a_log_of_another_database_is_refused_at_once(
    saver: DurableSaver, drive: Drive, world: World, databases: Databases, template: str
) -> None:
    name = databases.create(template)
    async with DurableSaver.from_conn_string(databases.conninfo(name)) as other:
        graph = _sending(other, drive, world, log=saver.effects)
        before = time.monotonic()
        with pytest.raises(EffectError, match="log= of another database"):
            await drive.invoke(graph, {}, thread())
        assert time.monotonic() - before < 5
    databases.drop(name)
    assert world.done == []


async def test_a_log_of_the_same_database_is_accepted(
    saver: DurableSaver, conninfo: str, drive: Drive, world: World
) -> None:
    async with DurableSaver.from_conn_string(conninfo) as other:
        graph = _sending(saver, drive, world, log=other.effects)
        assert await drive.invoke(graph, {}, thread()) == {"paid": "did a"}
