"""Threads of random graphs: what is done to them, and all that is to be seen of one."""

# Without `from __future__ import annotations`: LangGraph evaluates those of the states, which are local.

import asyncio
import operator
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, StateSnapshot, interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from tests.acceptance.graphs import Graph, Node, extend

T = TypeVar("T")
Durability: TypeAlias = Literal["sync", "async", "exit"]
Key: TypeAlias = tuple[str, str]
"""A checkpoint within its thread: namespace and id."""

DELTAS = ("log", "table", "rare")
INNER_DELTAS = ("trail", "notes")

# --- the graph: an interpreter of the plan in its state ---


class Shape(NamedTuple):
    """The snapshot frequencies of the delta channels."""

    log: int
    table: int
    rare: int
    trail: int


def merge(state: dict[str, str], writes: Sequence[dict[str, str]]) -> dict[str, str]:
    """Let the last writer of a key win, and tell who lost: sensitive to order, not to batches."""
    merged = dict(state)
    for write in writes:
        for key, value in write.items():
            merged[key] = f"{merged.get(key, '')}{value};"
    return merged


def furthest(at: int, other: int) -> int:
    return max(at, other)


def deltas_of(checkpoint_ns: str) -> tuple[str, ...]:
    return INNER_DELTAS if checkpoint_ns else DELTAS


@lru_cache(maxsize=64)
def graph_of(shape: Shape, saver: DurableSaver) -> Graph:
    """Make the graph. Its nodes advance `at`; the next one is the one that `plan` names there."""

    class Inner(TypedDict):
        asks: bool
        trail: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=shape.trail)]
        notes: Annotated[dict[str, str], DeltaChannel(merge, snapshot_frequency=1000)]

    class State(TypedDict):
        plan: Annotated[list[str], operator.add]
        at: Annotated[int, furthest]
        log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=shape.log)]
        table: Annotated[dict[str, str], DeltaChannel(merge, snapshot_frequency=shape.table)]
        rare: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=shape.rare)]
        plain: Annotated[list[str], operator.add]

    def inner_first(state: Inner) -> dict[str, Any]:
        return {"trail": [f"first {len(state['trail'])}"], "notes": {"first": str(len(state["trail"]))}}

    def inner_last(state: Inner) -> dict[str, Any]:
        said = interrupt("inner?") if state["asks"] else "nothing"
        return {"trail": [f"said {said}"]}

    inner = StateGraph(Inner)
    inner.add_sequence([("inner_first", inner_first), ("inner_last", inner_last)])
    inner.add_edge(START, "inner_first")

    def one(state: State) -> dict[str, Any]:
        return {"log": [f"one {state['at']}"], "at": state["at"] + 1}

    def quiet(state: State) -> dict[str, Any]:
        return {"plain": [f"quiet {state['at']}"], "at": state["at"] + 1}

    def reset(state: State) -> dict[str, Any]:
        return {"log": Overwrite([f"reset {state['at']}"]), "at": state["at"] + 1}

    def ask(state: State) -> dict[str, Any]:
        said = interrupt(f"at {state['at']}?")
        return {"log": [f"said {said}"], "rare": ["asked"], "at": state["at"] + 1}

    def worker(state: Any) -> dict[str, Any]:
        name = f"{state['name']} {state['at']}"
        return {"log": [name], "table": {"worker": name, name: "x"}, "at": state["at"] + 1}

    def side(name: str) -> Node:
        def node(state: Any) -> dict[str, Any]:
            return {"table": {"side": name}, "log": [name, str(len(state["log"]))], "at": state["at"] + 1}

        return node

    def join(state: State) -> dict[str, Any]:
        return {"plain": [f"join {len(state['log'])}"]}

    def calling(subgraph: Graph) -> Node:
        def node(state: Any) -> dict[str, Any]:
            asks = state["plan"][state["at"]].endswith("?")
            made = subgraph.invoke({"asks": asks, "trail": ["in"]})
            return {"log": ["/".join(made["trail"])], "rare": [str(made["notes"])], "at": state["at"] + 1}

        return node

    def route(state: Any) -> Any:
        if state["at"] >= len(state["plan"]):
            return END
        name = state["plan"][state["at"]].rstrip("?")
        if name == "fan":
            return [Send("worker", {"name": name, "at": state["at"]}) for name in "abc"]
        return ["left", "right"] if name == "sides" else name

    targets = ["one", "quiet", "reset", "ask", "call", "keep", "left", "right", "worker", END]
    builder = StateGraph(State)
    for name, node in {"one": one, "quiet": quiet, "reset": reset, "ask": ask, "join": join}.items():
        builder.add_node(name, node)
        builder.add_conditional_edges(name, route, targets)
    builder.add_node("call", calling(inner.compile()))
    builder.add_node("keep", calling(inner.compile(checkpointer=True)))
    for name in ("call", "keep"):
        builder.add_conditional_edges(name, route, targets)
    for name, node in {"worker": worker, "left": side("left"), "right": side("right")}.items():
        builder.add_node(name, node)
        builder.add_edge(name, "join")
    builder.add_conditional_edges(START, route, targets)
    return builder.compile(checkpointer=saver)


@lru_cache(maxsize=1)
def other_graph(saver: DurableSaver) -> Graph:
    """Make a graph that has but one of the channels, as an older or a newer version of the graph may."""

    class State(TypedDict):
        table: Annotated[dict[str, str], DeltaChannel(merge, snapshot_frequency=1000)]

    def alone(state: State) -> dict[str, Any]:
        return {"table": {"alone": str(len(state["table"]))}}

    builder = StateGraph(State)
    builder.add_node("alone", alone)
    builder.add_edge(START, "alone")
    return builder.compile(checkpointer=saver)


STEPS = ("one", "quiet", "reset", "ask", "fan", "sides", "call", "call?", "keep", "keep?")

# --- what is done to a thread ---


class Run(NamedTuple):
    plan: tuple[str, ...]
    durability: Durability
    with_deltas: bool


class Resume(NamedTuple):
    durability: Durability


class Fork(NamedTuple):
    """Run again from a checkpoint."""

    back: int
    durability: Durability


class Update(NamedTuple):
    """Update the state of the latest checkpoint, or of another."""

    back: int | None
    as_node: str
    overwrite: bool


class Copy(NamedTuple):
    """Copy a checkpoint beside itself."""

    back: int


class Elsewhere(NamedTuple):
    """Run another graph on the thread."""

    durability: Durability


class Clear(NamedTuple):
    """Clear the tasks of the latest checkpoint."""


Action: TypeAlias = Run | Resume | Fork | Update | Copy | Clear | Elsewhere


class Loop:
    """Runs async methods from sync tests, all in one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        self._loop.close()


@dataclass
class Thread:
    """A thread of a graph."""

    graph: Graph
    saver: DurableSaver
    loop: Loop | None = None
    """If given, what is done is done by async methods."""
    id: str = field(default_factory=lambda: uuid4().hex)
    runs: list[str] = field(default_factory=list)
    whole: bool = True
    """Nothing of it was removed yet."""

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the graph or of the saver, or its async counterpart."""
        owner = self.graph if hasattr(self.graph, method) else self.saver
        if self.loop is None:
            return getattr(owner, method)(*args, **options)

        async def call() -> Any:
            result: Awaitable[Any] = getattr(owner, "a" + method)(*args, **options)
            return await result

        return self.loop.run(call())

    def config(self, checkpoint_id: str | None = None, checkpoint_ns: str = "") -> RunnableConfig:
        configurable = {"thread_id": self.id, "checkpoint_ns": checkpoint_ns}
        return {"configurable": configurable | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}

    def act(self, action: Action, past: Sequence[str] | None = None) -> None:
        """Do it, to one of the checkpoints in `past` (all, newest first, if not given) where it goes back."""
        self.runs.append(f"{self.id} {len(self.runs)}")
        if past is None:
            past = [t.checkpoint["id"] for t in self.saver.list(self.config())]
        back = getattr(action, "back", None)
        config = self.config(past[back % len(past)] if back is not None and past else None)
        config["metadata"] = {"run_id": self.runs[-1]}
        if isinstance(action, Run):
            more = {"log": ["input"], "table": {"input": "x"}} if action.with_deltas else {}
            inputs = {"plan": list(action.plan), **more}
            self.do("invoke", inputs, config, durability=action.durability)
        elif isinstance(action, Elsewhere):
            elsewhere = replace(self, graph=other_graph(self.saver))
            elsewhere.do("invoke", {"table": {"in": "x"}}, config, durability=action.durability)
        elif not past:
            return
        elif isinstance(action, Resume):
            if any(task.interrupts for task in self.graph.get_state(config).tasks):
                self.do("invoke", Command(resume="yes"), config, durability=action.durability)
        elif isinstance(action, Fork):
            if self.saver.get_tuple(config).checkpoint["channel_versions"]:  # type: ignore[union-attr]
                self.do("invoke", None, config, durability=action.durability)
        elif isinstance(action, Update):
            log: Any = Overwrite(["new"]) if action.overwrite else ["updated"]
            self.do("update_state", config, {"log": log, "table": {"update": "x"}}, action.as_node)
        elif isinstance(action, Copy):
            self.do("update_state", config, None, "__copy__")
        else:
            self.do("update_state", config, None, END)

    def copied(self) -> "Thread":
        """Copy the thread to a new one."""
        copy = Thread(self.graph, self.saver, self.loop, runs=list(self.runs), whole=self.whole)
        self.do("copy_thread", self.id, copy.id)
        return copy

    def photograph(self) -> "dict[Key, Seen]":
        """See everything, newest first."""
        seen = {}
        for found in self.saver.list({"configurable": {"thread_id": self.id}}):
            ns, id_ = found.config["configurable"]["checkpoint_ns"], found.checkpoint["id"]
            named = self.saver.get_tuple(self.config(id_, ns))
            assert named == found
            parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
            state = self.graph.get_state(self.config(id_, ns), subgraphs=True)
            seen[ns, id_] = Seen(
                checkpoint=found.checkpoint,
                metadata=found.metadata,
                writes=found.pending_writes or [],
                parent=parent,
                state=_plain(state),
                subgraphs=[_plain(task.state) for task in state.tasks],
            )
        return seen


@dataclass
class Seen:
    """All that is to be seen of a checkpoint."""

    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    writes: Sequence[Any]
    parent: str | None
    state: Any
    subgraphs: list[Any]
    """The state of its tasks' subgraphs: the latest of theirs, not its own."""

    @property
    def replayed(self) -> set[str]:
        """Delta channels that have a value, but no separate one here."""
        versions, values = self.checkpoint["channel_versions"], self.checkpoint["channel_values"]
        return {c for c in (*DELTAS, *INNER_DELTAS) if c in versions and c not in values}


def _plain(state: Any) -> Any:
    """Return what there is in a snapshot besides its thread's id and its parent."""
    if not isinstance(state, StateSnapshot):
        return None
    tasks = [(t.id, t.name, t.path, t.error, t.interrupts, t.result) for t in state.tasks]
    return state.values, state.next, state.interrupts, state.created_at, tasks
