"""Builds the programs of plain nodes and of tasks."""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, interrupt
from pydantic import SecretStr

from langgraph_durable import DurableSaver
from tests.property.effect_law.effects import opaque_effect, plain_effects
from tests.property.effect_law.programs import Flow, Node
from tests.property.effect_law.world import World

_RETRY = RetryPolicy(
    initial_interval=0.01, backoff_factor=1.0, max_attempts=3, jitter=False, retry_on=Exception
)
PICK = "pay:pick"


class Flowing(TypedDict):
    """The state of plain nodes."""

    run: int
    began: Annotated[int, operator.add]
    number: str
    out: Annotated[list[str], operator.add]


def item_of(flow: Flow, item: str, run: int) -> str:
    """Return what a call orders in the run of an input."""
    return f"{item}-{run}" if flow.per_run else item


def build_flow(world: World, flow: Flow, saver: DurableSaver) -> Any:
    made = _Nodes(world, flow)
    return _build_tasks(made, saver) if flow.functional else _build_nodes(made, saver)


class _Nodes:
    """The nodes' bodies."""

    def __init__(self, world: World, flow: Flow) -> None:
        self.world = world
        self.flow = flow
        self.asynchronous = world.case.asynchronous
        self._effects = plain_effects(world)
        self._opaque = opaque_effect(world, flow.argument)

    def steps(self) -> list[list[tuple[str, Callable[..., Any]]]]:
        return [
            [(f"n{i}{j}", self._body(f"n{i}{j}", node)) for j, node in enumerate(nodes)]
            for i, nodes in enumerate(self.flow.steps)
        ]

    def _body(self, name: str, node: Node) -> Callable[..., Any]:
        """Return a function of the run's number, the tag of what is returned, and the number that was chosen."""

        def body(run: int, tag: int, number: str) -> list[str]:
            texts = [] if not number else [self._effects["pay"](f"pick~{number}")]
            if node.parallel:
                with ThreadPoolExecutor() as pool:
                    started = [pool.submit(copy_context().run, self._call, w, run) for w in node.calls]
                    texts += [future.result() for future in started]
                self._maybe_fail(name, node, len(node.calls))
                return [f"{tag}|{text}" for text in texts]
            for position, wish in enumerate(node.calls):
                self._maybe_fail(name, node, position)
                texts.append(self._call(wish, run))
            self._maybe_fail(name, node, len(node.calls))
            return [f"{tag}|{text}" for text in texts]

        async def abody(run: int, tag: int, number: str) -> list[str]:
            texts = [] if not number else [await self._effects["pay"](f"pick~{number}")]
            if node.parallel:
                texts += await asyncio.gather(*(self._call(wish, run) for wish in node.calls))
                self._maybe_fail(name, node, len(node.calls))
                return [f"{tag}|{text}" for text in texts]
            for position, wish in enumerate(node.calls):
                self._maybe_fail(name, node, position)
                texts.append(await self._call(wish, run))
            self._maybe_fail(name, node, len(node.calls))
            return [f"{tag}|{text}" for text in texts]

        return abody if self.asynchronous else body

    def _maybe_fail(self, name: str, node: Node, position: int) -> None:
        if node.fails_before == position and self.world.is_first(f"node {name}"):
            raise RuntimeError("flaky")

    def _call(self, wish: str, run: int) -> Any:
        tool, _, item = wish.partition(":")
        item = item_of(self.flow, item, run)
        if self.flow.argument == "secret":
            return self._opaque(SecretStr(item))
        if self.flow.argument == "iterator":
            return self._opaque(letter for letter in item)
        return self._effects[tool](item)


# --- plain nodes ---


def _build_nodes(made: _Nodes, saver: DurableSaver) -> Any:
    flow = made.flow
    builder: Any = StateGraph(Flowing)
    before: list[str] = []
    if flow.decide:
        builder.add_node("decide", lambda state: {"number": uuid.uuid4().hex[:6]})
        builder.add_edge(START, "decide")
        before = ["decide"]
    for i, nodes in enumerate(made.steps()):
        for j, (name, body) in enumerate(nodes):
            first = i == j == 0
            builder.add_node(
                name, _node(made, body, first=first), retry_policy=_RETRY if flow.retry else None
            )
            if before:
                builder.add_edge(before, name)
            else:
                builder.add_edge(START, name)
        before = [name for name, _ in nodes]
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def _node(made: _Nodes, body: Callable[..., Any], *, first: bool) -> Callable[[Any], Any]:
    flow = made.flow

    def number_of(state: Any) -> str:
        if first and flow.ask:
            return str(interrupt({"ask": "number"}))
        return str(state.get("number") or "") if first and flow.decide else ""

    def node(state: Any) -> Any:
        return {"out": body(state["run"], state["began"], number_of(state))}

    async def anode(state: Any) -> Any:
        return {"out": await body(state["run"], state["began"], number_of(state))}

    return anode if made.asynchronous else node


# --- tasks ---


def _build_tasks(made: _Nodes, saver: DurableSaver) -> Any:
    flow = made.flow
    retry: Any = _RETRY if flow.retry else None
    steps: Any = [
        [task(name=name, retry_policy=retry)(body) for name, body in nodes] for nodes in made.steps()
    ]

    if made.asynchronous:

        @task
        async def adecide() -> str:
            return uuid.uuid4().hex[:6]

        @entrypoint(checkpointer=saver)
        async def aworkflow(run: int, *, previous: Any = None) -> Any:
            number = str(interrupt({"ask": "number"})) if flow.ask else await adecide() if flow.decide else ""
            before = previous or {"began": 0, "out": []}
            out, tag = list(before["out"]), before["began"] + 1
            for i, tasks in enumerate(steps):
                running = [t(run, tag, number if i == j == 0 else "") for j, t in enumerate(tasks)]
                for texts in await asyncio.gather(*running):
                    out += texts
            return {"began": tag, "run": run, "out": out}

        return aworkflow

    @task
    def decide() -> str:
        return uuid.uuid4().hex[:6]

    @entrypoint(checkpointer=saver)
    def workflow(run: int, *, previous: Any = None) -> Any:
        number = str(interrupt({"ask": "number"})) if flow.ask else decide().result() if flow.decide else ""
        before = previous or {"began": 0, "out": []}
        out, tag = list(before["out"]), before["began"] + 1
        for i, tasks in enumerate(steps):
            running = [t(run, tag, number if i == j == 0 else "") for j, t in enumerate(tasks)]
            for future in running:
                out += future.result()
        return {"began": tag, "run": run, "out": out}

    return workflow
