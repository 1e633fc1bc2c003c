"""Which effects belong to which checkpoint of a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Checkpointer, StateSnapshot

from langgraph_durable import DurableSaver, effect
from langgraph_durable.effects import EffectRecord
from langgraph_durable.errors import InvalidConfigError
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, calls, made, remind
from tests.acceptance.graphs import Graph, Steps
from tests.effects import SCHEMA

pytestmark = pytest.mark.context


async def of(drive: Drive, saver: DurableSaver, config: Any) -> list[Any]:
    """Return the arguments of a checkpoint's effects."""
    log = saver.effects
    found: Sequence[EffectRecord] = (
        await log.afor_checkpoint(config) if drive.asynchronous else log.for_checkpoint(config)
    )
    return [record.args for record in found]


async def by_step(drive: Drive, saver: DurableSaver, graph: Graph, config: Any) -> dict[Any, list[Any]]:
    """Return step -> effects of its checkpoint, for those that have any."""
    told: dict[Any, list[Any]] = {}
    for snapshot in await drive.history(graph, config):
        if found := await of(drive, saver, snapshot.config):
            told[(snapshot.metadata or {}).get("step")] = found
    return told


def told_by(text: str) -> dict[str, Any]:
    return {"text": text}


@pytest.mark.parametrize("apart", [False, True])
async def test_each_checkpoint_has_the_effects_of_its_tasks(
    saver: DurableSaver, drive: Drive, world: World, apart: bool
) -> None:
    tools = [made(drive, remind(world))]
    script = (calls(("remind", "a", "1"), ("remind", "b", "2")), calls(("remind", "c", "3")))
    graph = agent(saver, tools, *script, apart=apart)
    await drive.invoke(graph, GIVEN, thread())
    assert sorted(world.done) == ["a", "b", "c"]
    told = await by_step(drive, saver, graph, thread())
    assert {step: sorted(e["text"] for e in found) for step, found in told.items()} == {
        1: ["a", "b"],
        3: ["c"],
    }


async def test_checkpoints_are_found_by_ulid_and_latest(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread())
    assert await of(drive, saver, thread()) == [told_by("a")]
    ulid = await saver.aget_ulid(thread())
    assert await of(drive, saver, thread(checkpoint_id=ulid)) == [told_by("a")]
    assert await of(drive, saver, thread("another")) == []
    assert await of(drive, saver, thread(checkpoint_id="unknown")) == []
    with pytest.raises(InvalidConfigError):
        saver.effects.for_checkpoint({"configurable": {}})


async def test_a_replay_belongs_to_both_checkpoints(saver: DurableSaver, drive: Drive, world: World) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    asked = await _before(drive, graph, "tools")
    await drive.invoke(graph, None, asked.config)
    assert world.done == ["a"]
    history = await drive.history(graph, thread())
    forked = [s for s in history if s.next == ("tools",)]
    assert len(forked) == 2
    shown = [await of(drive, saver, s.config) for s in forked]
    assert shown == [[told_by("a")], [told_by("a")]]


async def test_effects_of_a_fork_belong_to_the_fork(saver: DurableSaver, drive: Drive, world: World) -> None:
    tools = [made(drive, remind(world), on_fork="new")]
    graph = agent(saver, tools, calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    asked = await _before(drive, graph, "tools")
    await drive.invoke(graph, None, asked.config)
    assert world.done == ["a", "a"]
    forked = [s for s in await drive.history(graph, thread()) if s.next == ("tools",)]
    assert [await of(drive, saver, s.config) for s in forked] == [[told_by("a")], [told_by("a")]]


async def test_a_new_attempt_after_a_failure_moves_the_effect(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [ValueError("refused")]
    graph = agent(saver, [made(drive, remind(world), failed_on=ValueError)], calls(("remind", "a", "1")))
    with pytest.raises(ValueError, match="refused"):
        await drive.invoke(graph, GIVEN, thread())
    asked = await drive.state(graph, thread())
    await drive.invoke(graph, None, asked.config)
    forked = [s for s in await drive.history(graph, thread()) if s.next == ("tools",)]
    shown = [await of(drive, saver, s.config) for s in forked]
    assert shown == [[told_by("a")], []]
    assert await of(drive, saver, asked.config) == []


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_a_root_checkpoint_includes_effects_of_subgraphs(
    saver: DurableSaver, conninfo: str, drive: Drive, world: World, checkpointer: Checkpointer
) -> None:
    inner = agent(checkpointer, [made(drive, remind(world))], calls(("remind", "a", "1")))
    builder = StateGraph(inner.builder.state_schema)  # type: ignore[attr-defined]
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, GIVEN, thread())
    assert await by_step(drive, saver, graph, thread()) == {0: [told_by("a")]}
    own = [
        found.config
        async for found in saver.alist(thread())
        if found.config["configurable"]["checkpoint_ns"] and await of(drive, saver, found.config)
    ]
    [config] = own
    assert await of(drive, saver, thread(**{**config["configurable"], "checkpoint_ns": "other"})) == []
    # Once the subgraph's checkpoints are gone, the root checkpoint of its call is no longer known.
    with psycopg.connect(conninfo) as connection:
        connection.execute(f"DELETE FROM {SCHEMA}.checkpoints WHERE checkpoint_ns <> ''")
    assert await by_step(drive, saver, graph, thread()) == {}


async def test_a_checkpoint_has_the_effects_of_functional_tasks(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    if drive.asynchronous:

        @task
        @effect(name="remind")
        async def aremind(text: str) -> str:
            return world(text)

        @entrypoint(checkpointer=saver)
        async def aflow(texts: list[str]) -> list[str]:
            return [await aremind(text) for text in texts]

        graph: Graph = aflow
    else:

        @task
        @effect(name="remind")
        def do(text: str) -> str:
            return world(text)

        @entrypoint(checkpointer=saver)
        def flow(texts: list[str]) -> list[str]:
            return [do(text).result() for text in texts]

        graph = flow
    await drive.invoke(graph, ["a", "b"], thread())
    assert await by_step(drive, saver, graph, thread()) == {-1: [told_by("a"), told_by("b")]}


async def test_a_checkpoint_has_effects_with_keys(saver: DurableSaver, drive: Drive) -> None:
    log = saver.effects

    def node(state: Steps) -> dict[str, Any]:
        with log.effect("e-mail", key="k", args={"text": "in a node"}) as e:
            e.issue()
            e.complete("sent")
        return {"trail": ["sent"]}

    builder = StateGraph(Steps)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"trail": []}, thread())
    with log.effect("e-mail", key="outside", args={"text": "outside"}) as e:
        e.complete()
    assert await by_step(drive, saver, graph, thread()) == {0: [told_by("in a node")]}


async def test_effects_of_checkpoints_survive_a_copy_and_a_prune(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    asked = await _before(drive, graph, "tools")
    saver.copy_thread("thread", "copy")
    assert await by_step(drive, saver, graph, thread("copy")) == {1: [told_by("a")]}
    saver.prune(["thread"], keep_last=1)
    assert await by_step(drive, saver, graph, thread()) == {}
    assert await of(drive, saver, asked.config) == [told_by("a")]  # its effects are still found by its id


async def _before(drive: Drive, graph: Graph, node: str) -> StateSnapshot:
    return next(s for s in await drive.history(graph, thread()) if s.next == (node,))
