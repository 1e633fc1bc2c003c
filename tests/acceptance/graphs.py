"""The graphs that the acceptance tests run: built for a saver, and for a function that records what ran."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

from langgraph.cache.memory import InMemoryCache
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

Graph: TypeAlias = Pregel[Any, Any, Any, Any]
Saver: TypeAlias = BaseCheckpointSaver[Any]
Record: TypeAlias = Callable[[str], None]
Builder: TypeAlias = Callable[[Saver, Record], Graph]


class Node(Protocol):
    """A function that can be a node."""

    def __call__(self, state: Any) -> Any: ...


class Runs:
    """Records which nodes ran, and makes the chosen ones fail, once each."""

    def __init__(self, *fail: str) -> None:
        self.names: list[str] = []
        self._fail = set(fail)
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.names.append(name)
            if name in self._fail:
                self._fail.remove(name)
                raise NodeError(name)

    def since(self, count: int) -> list[str]:
        return sorted(self.names[count:])


class NodeError(Exception):
    """The error of a node that was chosen to fail."""


def ignore(name: str) -> None:
    """Record nothing."""


# --- a chain of steps ---


class Steps(TypedDict):
    trail: Annotated[list[str], operator.add]


CHAIN = ("first", "second", "third", "fourth")


def step(name: str, record: Record) -> Node:
    def node(state: Any) -> dict[str, Any]:
        record(name)
        return {"trail": [name]}

    return node


def chain(saver: Saver, record: Record, **options: Any) -> Graph:
    builder = StateGraph(Steps)
    builder.add_sequence([(name, step(name, record)) for name in CHAIN])
    builder.add_edge(START, CHAIN[0])
    return builder.compile(checkpointer=saver, **options)


def long_chain(saver: Saver, record: Record) -> Graph:
    names = [f"step {number:02}" for number in range(12)]
    builder = StateGraph(Steps)
    builder.add_sequence([(name, step(name, record)) for name in names])
    builder.add_edge(START, names[0])
    return builder.compile(checkpointer=saver)


def loop(saver: Saver, record: Record, turns: int = 5) -> Graph:
    def turn(state: Steps) -> dict[str, Any]:
        record("turn")
        return {"trail": [f"turn {len(state['trail'])}"]}

    def again(state: Steps) -> str:
        return "turn" if len(state["trail"]) < turns else END

    builder = StateGraph(Steps)
    builder.add_node("turn", turn)
    builder.add_edge(START, "turn")
    builder.add_conditional_edges("turn", again, ["turn", END])
    return builder.compile(checkpointer=saver)


# --- fan-out ---


class Fan(TypedDict):
    items: list[int]
    results: Annotated[list[str], operator.add]


class Item(TypedDict):
    item: int


def fan_out(saver: Saver, record: Record) -> Graph:
    def work(state: Item) -> dict[str, Any]:
        record(f"work {state['item']}")
        return {"results": [f"done {state['item']}"]}

    def spread(state: Fan) -> list[Send]:
        return [Send("work", {"item": item}) for item in state["items"]]

    def join(state: Fan) -> dict[str, Any]:
        record("join")
        return {"results": ["joined"]}

    builder = StateGraph(Fan)
    builder.add_node("work", work, input_schema=Item)
    builder.add_node("join", join)
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", "join")
    return builder.compile(checkpointer=saver)


def branches(saver: Saver, record: Record) -> Graph:
    """Three nodes in one super-step, then one that waits for them."""
    builder = StateGraph(Steps)
    for name in ("left", "middle", "right"):
        builder.add_node(name, step(name, record))
        builder.add_edge(START, name)
    builder.add_node("last", step("last", record))
    builder.add_edge(["left", "middle", "right"], "last")
    return builder.compile(checkpointer=saver)


# --- interrupts ---


def asking(name: str, record: Record, times: int = 1) -> Node:
    def node(state: Any) -> dict[str, Any]:
        record(name)
        return {"trail": [f"{name}: {interrupt(f'{name}?{turn}')}" for turn in range(times)]}

    return node


def ask(saver: Saver, record: Record, times: int = 1) -> Graph:
    builder = StateGraph(Steps)
    builder.add_sequence(
        [
            ("before", step("before", record)),
            ("ask", asking("ask", record, times)),
            ("after", step("after", record)),
        ]
    )
    builder.add_edge(START, "before")
    return builder.compile(checkpointer=saver)


def ask_twice(saver: Saver, record: Record) -> Graph:
    return ask(saver, record, times=2)


def parallel_asks(saver: Saver, record: Record) -> Graph:
    builder = StateGraph(Steps)
    for name in ("alice", "bob"):
        builder.add_node(name, asking(name, record))
    builder.add_node("sibling", step("sibling", record))
    builder.add_node("after", step("after", record))
    for name in ("alice", "bob", "sibling"):
        builder.add_edge(START, name)
    builder.add_edge(["alice", "bob", "sibling"], "after")
    return builder.compile(checkpointer=saver)


def ask_in_fan(saver: Saver, record: Record) -> Graph:
    """Every sent task asks, and a command of the last node ends the run."""

    def work(state: Item) -> dict[str, Any]:
        record(f"work {state['item']}")
        return {"results": [f"{state['item']}: {interrupt(state['item'])}"]}

    def spread(state: Fan) -> list[Send]:
        return [Send("work", {"item": item}) for item in state["items"]]

    def join(state: Fan) -> Command[str]:
        record("join")
        return Command(update={"results": ["joined"]}, goto=END)

    builder = StateGraph(Fan)
    builder.add_node("work", work, input_schema=Item)
    builder.add_node("join", join)
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", "join")
    return builder.compile(checkpointer=saver)


# --- delta channels ---


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Sparse(TypedDict):
    """Never a snapshot: every value is replayed from writes."""

    trail: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]


class Frequent(TypedDict):
    """A snapshot at every second update."""

    trail: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=2)]


def delta(saver: Saver, record: Record, state: type[Any] = Sparse) -> Graph:
    builder = StateGraph(state)
    builder.add_node("before", step("before", record))
    builder.add_node("left", step("left", record))
    builder.add_node("right", step("right", record))
    builder.add_node("ask", asking("ask", record))
    builder.add_edge(START, "before")
    builder.add_edge("before", "left")
    builder.add_edge("before", "right")
    builder.add_edge(["left", "right"], "ask")
    return builder.compile(checkpointer=saver)


def frequent_delta(saver: Saver, record: Record) -> Graph:
    return delta(saver, record, Frequent)


def delta_chain(saver: Saver, record: Record, state: type[Any] = Sparse) -> Graph:
    builder = StateGraph(state)
    builder.add_sequence([(name, step(name, record)) for name in CHAIN])
    builder.add_edge(START, CHAIN[0])
    return builder.compile(checkpointer=saver)


# --- policies ---


def retrying(saver: Saver, record: Record) -> Graph:
    policy = RetryPolicy(initial_interval=0.001, max_attempts=3, jitter=False, retry_on=NodeError)
    builder = StateGraph(Steps)
    builder.add_node("flaky", step("flaky", record), retry_policy=policy)
    builder.add_node("last", step("last", record))
    builder.add_edge(START, "flaky")
    builder.add_edge("flaky", "last")
    return builder.compile(checkpointer=saver)


def deferred(saver: Saver, record: Record) -> Graph:
    """The last node waits for a branch of one step and a branch of two."""
    builder = StateGraph(Steps)
    for name in ("short", "long_first", "long_second"):
        builder.add_node(name, step(name, record))
    builder.add_node("last", step("last", record), defer=True)
    builder.add_edge(START, "short")
    builder.add_edge(START, "long_first")
    builder.add_edge("long_first", "long_second")
    builder.add_edge("long_second", "last")
    builder.add_edge("short", "last")
    return builder.compile(checkpointer=saver)


def caching(saver: Saver, record: Record) -> Graph:
    def cached(state: Steps) -> dict[str, Any]:
        record("cached")
        return {"trail": ["cached"]}

    builder = StateGraph(Steps)
    builder.add_node("cached", cached, cache_policy=CachePolicy(key_func=lambda state: "same"))
    builder.add_node("last", step("last", record))
    builder.add_edge(START, "cached")
    builder.add_edge("cached", "last")
    return builder.compile(checkpointer=saver, cache=InMemoryCache())


# --- the functional API ---


def workflow(saver: Saver, record: Record) -> Graph:
    """Two tasks, a question, and a sum over all runs of the thread."""

    @task
    def double(number: int) -> int:
        record(f"double {number}")
        return 2 * number

    @task
    def check(number: int) -> int:
        record(f"check {number}")
        return number

    @entrypoint(checkpointer=saver)
    def run(number: int, *, previous: int | None = None) -> Any:
        record("run")
        twice = double(number).result()
        checked = check(twice).result()
        if number == 0:
            checked += interrupt("how many?")
        total = (previous or 0) + checked
        return entrypoint.final(value={"twice": twice, "total": total}, save=total)

    return run
