"""A saver behind the Agent Server's adapter: what takes a saver finds it there."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typing_extensions import TypedDict

from langgraph_durable import (
    DurableSaver,
    EffectLog,
    InvalidConfig,
    apending_interrupts,
    effect,
    pending_interrupts,
)
from langgraph_durable.otel import instrument
from tests.acceptance.driving import thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, calls, told
from tests.adapter import Adapter

pytestmark = pytest.mark.context


def append(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Log(TypedDict):
    log: Annotated[list[str], DeltaChannel(append, snapshot_frequency=1000)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_bare_effect_is_paid_once(saver: DurableSaver, world: World, asynchronous: bool) -> None:
    """The saver is found in the running graph, of which it is not the checkpointer."""
    failures = [OSError("later")]

    def then(text: str) -> str:
        if failures:
            raise failures.pop()
        return world(text)

    if asynchronous:

        @tool
        @effect()
        async def apay(text: str) -> str:
            """Pay."""
            return world(text)

        pay = apay
    else:

        @tool("apay")
        @effect()
        def pay(text: str) -> str:
            """Pay."""
            return world(text)

    script = (calls(("apay", "a", "1")), calls(("then", "b", "2")))
    graph = agent(Adapter(saver), [pay, tool(then, description="Fail.")], *script)
    with pytest.raises(OSError, match="later"):
        await graph.ainvoke(GIVEN, thread())
    before = [s async for s in graph.aget_state_history(thread()) if "tools" in s.next][-1]
    assert told(await graph.ainvoke(None, before.config)) == ["did a", "did b"]
    assert world.done == ["a", "b"]
    assert [record.state for record in await EffectLog.from_saver(saver).alist()] == ["completed"]


async def test_a_raw_node_that_is_run_again_pays_once(saver: DurableSaver, world: World) -> None:
    failures = [OSError("later")]

    @effect()
    async def pay(text: str) -> str:
        return world(text)

    async def node(state: Log) -> dict[str, Any]:
        paid = await pay("a")
        if failures:
            raise failures.pop()
        return {"log": [paid]}

    builder = StateGraph(Log)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=Adapter(saver))
    with pytest.raises(OSError, match="later"):
        await graph.ainvoke({"log": ["begin"]}, thread())
    assert (await graph.ainvoke(None, thread()))["log"] == ["begin", "did a"]
    assert world.done == ["a"]


async def test_what_takes_a_saver_takes_the_adapter(saver: DurableSaver) -> None:
    adapter: Any = Adapter(saver)
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))

    def ask(state: Log) -> dict[str, Any]:
        return {"log": [interrupt("go on?")]}

    builder = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=adapter)
    instrument(adapter, tracer_provider=tracers)
    await graph.ainvoke({"log": ["begin"]}, thread())
    assert any(span.name.startswith("put ") for span in spans.get_finished_spans())
    assert EffectLog.from_saver(adapter) is EffectLog.from_saver(saver)
    assert [w.question for w in pending_interrupts(adapter)] == ["go on?"]
    assert [w.question async for w in apending_interrupts(adapter)] == ["go on?"]
    await graph.ainvoke(Command(resume="yes"), thread())
    report = await saver.acompact(graph, ["thread"])
    assert report.threads["thread"].rows["checkpoints"] > 0
    assert (await graph.aget_state(thread())).values == {"log": ["begin", "yes"]}
    await adapter.aprune(["thread"], strategy="delete_all")
    assert await saver.aget_tuple(thread()) is None


def test_a_proxy_of_another_saver_is_refused(saver: DurableSaver) -> None:
    other: Any = Adapter(InMemorySaver())
    for use in (EffectLog.from_saver, pending_interrupts, instrument):
        with pytest.raises(InvalidConfig, match="needs a DurableSaver, got Adapter"):
            use(other)
