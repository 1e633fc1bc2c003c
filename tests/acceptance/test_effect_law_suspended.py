"""Effects that wait for a human while their step is abandoned: what they may have sent is not sent again."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver, Happened
from langgraph_durable.effects import EffectRecord
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import (
    GIVEN,
    Body,
    World,
    agent,
    answer,
    calls,
    made,
    states,
    told,
)
from tests.acceptance.graphs import Graph

pytestmark = pytest.mark.context

ASKED = calls(("remind", "a", "1"))


def waiting(world: World) -> Body:
    """Return a body that sends, and then waits for a human."""

    def remind(text: str) -> Any:
        said = world(text)
        interrupt("enough?")
        return said

    return remind


def asking_again(saver: DurableSaver, drive: Drive, world: World, **policy: Any) -> Graph:
    return agent(saver, [made(drive, waiting(world), **policy)], ASKED, ASKED)


def find_out(record: EffectRecord) -> Happened:
    return Happened("found")


async def test_what_waited_in_an_abandoned_step_is_verified(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = asking_again(saver, drive, world, verify=find_out)
    await drive.invoke(graph, GIVEN, thread())
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result) == ["found"]
    assert world.done == ["a"]


async def test_what_waited_in_an_abandoned_step_is_asked_about(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = asking_again(saver, drive, world, on_unknown="ask")
    await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, GIVEN, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    assert asked.value["question"] == "Did remind take place?"
    given = answer(asked, "happened", result="it is sent")
    result = await drive.invoke(graph, Command(resume={asked.id: given}), thread())
    assert told(result) == ["it is sent"]
    assert world.done == ["a"]


async def test_what_waits_on_another_branch_is_verified(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(saver, [made(drive, waiting(world), verify=find_out)], ASKED)
    await drive.invoke(graph, GIVEN, thread())
    history = await drive.history(graph, thread())
    before_model = next(state.config for state in history if "model" in state.next)
    result = await drive.invoke(graph, None, before_model)  # the model is asked again
    assert told(result) == ["found"]
    assert world.done == ["a"]


async def test_on_fork_new_leaves_what_waits_on_another_branch_alone(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(saver, [made(drive, waiting(world), verify=find_out, on_fork="new")], ASKED)
    await drive.invoke(graph, GIVEN, thread())
    history = await drive.history(graph, thread())
    before_model = next(state.config for state in history if "model" in state.next)
    await drive.invoke(graph, None, before_model)
    assert world.done == ["a", "a"]
    assert states(saver) == ["suspended", "suspended"]


async def test_calls_that_wait_beside_each_other_are_separate(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    two = calls(("remind", "a", "1"), ("remind", "a", "2"))
    graph = agent(saver, [made(drive, waiting(world))], two, apart=True)
    await drive.invoke(graph, GIVEN, thread())
    assert world.done == ["a", "a"]
    assert states(saver) == ["suspended", "suspended"]
