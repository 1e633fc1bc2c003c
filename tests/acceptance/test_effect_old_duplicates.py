"""Effects that may be the same request as an old one, inside another effect."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, EffectPolicy, Happened, effect
from langgraph_durable.errors import EffectDuplicateError
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_graphs import World
from tests.acceptance.graphs import Graph

pytestmark = pytest.mark.context

OLD_AT_ONCE = EffectPolicy(verify=lambda record: Happened("paid"), duplicate_window=0)


class State(TypedDict, total=False):
    out: Annotated[list[Any], operator.add]


def ordering(saver: DurableSaver, drive: Drive, world: World) -> Graph:
    """Return a graph whose node runs an effect that pays by an inner one."""

    if drive.asynchronous:

        @effect(policy=OLD_AT_ONCE, name="pay")
        async def apay(item: str) -> str:
            return world(item)

        @effect(idempotent=True, name="order")
        async def aorder(item: str) -> str:
            return await apay(item)

        async def anode(state: State) -> State:
            return {"out": [await aorder("tea")]}

        node: Any = anode
    else:

        @effect(policy=OLD_AT_ONCE, name="pay")
        def pay(item: str) -> str:
            return world(item)

        @effect(idempotent=True, name="order")
        def order(item: str) -> str:
            return pay(item)

        def plain_node(state: State) -> State:
            return {"out": [order("tea")]}

        node = plain_node
    builder = StateGraph(State)
    builder.add_node("order", node)
    builder.add_edge(START, "order")
    return builder.compile(checkpointer=saver)


async def test_a_refused_inner_effect_is_refused_again(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = ordering(saver, drive, world)
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, {"out": []}, thread())
    given: Any
    for given in ({"out": ["again"]}, None, None):
        with pytest.raises(EffectDuplicateError) as raised:
            await drive.invoke(graph, given, thread())
    assert world.done == ["tea"]
    acknowledge = saver.effects.aacknowledge if drive.asynchronous else saver.effects.acknowledge
    acknowledged = acknowledge(raised.value.effect_id)
    if drive.asynchronous:
        await acknowledged  # type: ignore[misc]
    await drive.invoke(graph, None, thread())
    assert world.done == ["tea", "tea"]
