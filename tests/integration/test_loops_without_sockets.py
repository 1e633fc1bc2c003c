"""Event loops that cannot wait on sockets, as Windows' default one: async calls run the blocking driver in threads."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Coroutine
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect
from langgraph_durable.errors import InvalidConfigError
from tests.checkpoints import config_for
from tests.samples import Observer, wait_until

pytestmark = pytest.mark.context


class WithoutSockets(asyncio.SelectorEventLoop):
    """Refuses what a ProactorEventLoop refuses."""

    def add_reader(self, *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError

    def add_writer(self, *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def run(main: Coroutine[Any, Any, Any]) -> Any:
    loop = WithoutSockets()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def test_a_graph_runs_with_effects_and_interrupts(conninfo: str, observer: Observer) -> None:
    paid: list[str] = []

    @effect()
    async def pay(order: str) -> str:
        paid.append(order)
        return f"paid {order}"

    async def paying(state: State) -> State:
        return {"said": [await pay(state["said"][0])]}

    def asking(state: State) -> State:
        return {"said": [interrupt("go on?")]}

    async def main() -> None:
        async with DurableSaver.from_conn_string(conninfo, max_size=4) as saver:
            builder = StateGraph(State)
            builder.add_node("paying", paying)
            builder.add_node("asking", asking)
            builder.add_edge(START, "paying")
            builder.add_edge("paying", "asking")
            graph = builder.compile(checkpointer=saver)

            async def talk(number: int) -> list[str]:
                config = config_for(f"t{number}")
                await graph.ainvoke({"said": [str(number)]}, config)
                assert len([s async for s in graph.aget_state_history(config)]) == 3
                done = await graph.ainvoke(Command(resume="yes"), config)
                said: list[str] = done["said"]
                return said

            await saver.asetup()
            for number, said in enumerate(await asyncio.gather(*(talk(number) for number in range(20)))):
                assert said == [str(number), f"paid {number}", "yes"]
            assert len([w async for w in saver.apending_interrupts()]) == 0
            assert sorted(paid, key=int) == [str(number) for number in range(20)]
            await saver.aprune([f"t{number}" for number in range(20)])
            assert len([t async for t in saver.alist(None)]) == 20
            await saver.adelete_thread("t0")

    run(main())
    wait_until(lambda: not observer.backends(), "the pools' end")


def test_lost_connections_are_retried(conninfo: str, observer: Observer) -> None:
    async def main() -> None:
        async with DurableSaver.from_conn_string(conninfo) as saver:
            assert await saver.aget_tuple(config_for("t")) is None
            observer.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'langgraph_durable'"
            )
            assert await saver.aget_tuple(config_for("t")) is None

    run(main())


def test_an_async_transaction_is_refused(conninfo: str) -> None:
    async def main() -> None:
        async with DurableSaver.from_conn_string(conninfo) as saver:
            with pytest.raises(InvalidConfigError, match="an event loop that can wait on sockets"):
                async with saver.effects.atransaction("seat", key="k"):
                    pass

    run(main())
