"""What the law's cases consist of: a program, a policy, and a history of actions and faults.

All are frozen dataclasses, whose repr is Python that builds them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

TalkShape = Literal[
    "graph",  # a model and a ToolNode, in a loop
    "send",  # the same, each call in a separate Send and message
    "one node",  # the model and its ToolNode run in one node
    "subgraph",  # "graph", as a node of another graph
    "called",  # "graph", invoked by a node of another graph
    "agent",  # create_agent, decorated tools
    "wrapped",  # create_agent, plain tools behind EffectMiddleware
    "nested agent",  # "agent", as a node of another graph
]
NESTED = ("subgraph", "called", "nested agent")
AGENTS = ("agent", "wrapped", "nested agent")


@dataclass(frozen=True)
class Talk:
    """A scripted model that asks for what the user wants and has not got yet."""

    shape: TalkShape
    serial: bool = False
    """Whether the model asks for one thing at a time."""
    ids: bool = True
    """Whether messages have ids."""
    errors: bool = False
    """Whether ToolNode turns errors into messages, after which the model asks again."""
    retry: Literal["no", "tools", "outer", "call"] = "no"
    """What is retried: the node of the tools, the one that is or calls a graph, or each call within its ToolNode."""
    ask: Literal["no", "before", "after"] = "no"
    """Whether `pay` interrupts before or after its request."""
    same_name: bool = False
    """Whether the functions behind the tools all have one name."""


@dataclass(frozen=True)
class Node:
    """A plain node or a task: the effects it calls, one after another or at once."""

    calls: tuple[str, ...]
    parallel: bool = False
    fails_before: int | None = None
    """Before which call it fails when it runs for the first time."""


@dataclass(frozen=True)
class Flow:
    """Plain nodes, or tasks of the functional API, in steps."""

    functional: bool
    steps: tuple[tuple[Node, ...], ...]
    retry: bool = False
    ask: bool = False
    """Whether a human is asked for a number first, which the last order contains."""
    decide: bool = False
    """Whether the number comes from a task that decides otherwise each time it runs."""
    per_run: bool = False
    """Whether each input's orders are different."""
    argument: Literal["plain", "secret", "iterator"] = "plain"
    """What effects are given; all but plain data must be refused."""


@dataclass(frozen=True)
class Fan:
    """One message of a model in several Sends, with other injected arguments or with the same."""

    customers: tuple[str, ...]
    items: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """A model whose cached answer, with one message id, is used again in each turn."""

    turns: int
    items: tuple[str, ...]


Program: TypeAlias = Talk | Flow | Fan | Loop


@dataclass(frozen=True)
class Policy:
    """The policy of the program's effects, and whether the vendor honours idempotency keys."""

    unknown: Literal["verify", "ask", "raise", "retry", "idempotent"] = "verify"
    on_fork: Literal["replay", "new", "raise"] = "replay"
    scope: Literal["call", "thread"] = "call"
    honours_keys: bool = False
    on_undelivered: Literal["replay", "ask", "raise"] = "replay"
    duplicate_window: float | None = 86_400.0
    """In seconds. Histories are shorter than a day, and longer than 0."""

    @property
    def stops_duplicates(self) -> bool:
        """Whether a call is refused that may ask for what was done in a step that was abandoned."""
        return self.on_undelivered == "raise" or (
            self.on_undelivered == "replay" and self.duplicate_window == 0.0
        )


@dataclass(frozen=True)
class Fault:
    """What goes wrong in an action: at the n-th request to the vendor, or the n-th database operation."""

    kind: Literal["kill", "lose", "refuse"]
    at: Literal["vendor", "database"]
    n: int
    after: bool
    linger: bool = False
    """Whether parallel calls have time to end before."""


@dataclass(frozen=True)
class Action:
    """One step of a history."""

    kind: Literal["input", "again", "resume", "update", "bulk", "pin", "travel", "fork"]
    wishes: tuple[str, ...] = ()
    """What a new user message asks for."""
    back: int = 0
    """How many checkpoints back `travel` and `fork` go."""
    fault: Fault | None = None
    answer: bool = True
    """Whether questions are answered in this action."""


@dataclass(frozen=True)
class Case:
    """A program, its setting and its history."""

    program: Program
    policy: Policy
    actions: tuple[Action, ...]
    asynchronous: bool = False
    durability: Literal["sync", "async"] = "async"
    threads: int = 1
    slow_writes: bool = False
    """Whether storing pending writes takes long."""
    seed: int = field(default=-1, compare=False)


INNER = "notify:ops"
"""What the effect `order` does through an inner effect, whatever is ordered."""


def orders_of(wish: str) -> list[str]:
    """Return the vendor's orders behind one call of a tool."""
    tool, _, item = wish.partition(":")
    if tool == "look":
        return []
    return [f"pay:{item}", INNER] if tool == "order" else [wish]


def count_orders(wishes: Iterable[str]) -> Counter[str]:
    return Counter(order for wish in wishes for order in orders_of(wish))
