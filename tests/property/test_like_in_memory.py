"""Random graphs and scripts: what is stored, and what comes of it, is the same as with LangGraph's InMemorySaver.

What differs by itself is named by where it first shows: ids of checkpoints, tasks and questions, versions of channels.
What LangGraph leaves to chance is not in the graphs: tasks that fail beside others, channels that hand out the very
list or set that they go on to change (with durability "async", what is stored then depends on who is faster).
"""

from __future__ import annotations

import difflib
import operator
import os
import random
import re
import sys
from collections.abc import Awaitable
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, PregelTask, Send, interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive
from tests.acceptance.graphs import Graph, Node, NodeError, Saver, extend

EXAMPLES = int(os.environ.get("DURABLE_LIKE_EXAMPLES", "24"))
KINDS = ["plain", "ask", "ask", "twice", "sub", "fan", "fail"]
_ID = re.compile(r"(?!0{8}-0{4}-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_VERSION = re.compile(r"'(0\d{9,})\.[0-9a-f.\-]+'")


class Outside:
    """What outlives a graph that is built anew: which nodes have failed."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def fail_once(self, name: str) -> None:
        if name not in self.failed:
            self.failed.add(name)
            raise NodeError(name)


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **new}


def state_of(rng: random.Random) -> Any:
    log: Any = DeltaChannel(extend, snapshot_frequency=rng.choice([1, 2, 3, 1000]))
    channels = {
        "trail": Annotated[list[Any], operator.add],
        "log": Annotated[list[str], log],
        "files": Annotated[dict[str, Any], merge],
    }
    return TypedDict("State", channels)  # type: ignore[operator]


def build(seed: str, saver: Saver | bool | None, outside: Outside, depth: int = 0) -> Graph:
    """Make the graph of a seed: layers of one or two nodes, each with edges to all of the next."""
    rng = random.Random(seed)
    builder = StateGraph(state_of(rng))
    before = [START]
    for layer in range(rng.choice([1, 2, 2, 3])):
        width = rng.choice([1, 2])
        kinds = rng.choices(KINDS[: -3 * (depth or width > 1) or None], k=width)
        names = [f"{'s' * depth}{layer}{'ab'[place]}" for place in range(width)]
        for name, kind in zip(names, kinds, strict=True):
            builder.add_node(name, node_of(f"{seed} {name}", name, kind, outside, depth))
            for source in before:
                builder.add_edge(source, name)
            if kind == "fan":
                builder.add_node(f"{name}-item", node_of(seed, f"{name}-item", "ask", outside, depth))
        before = names
    return builder.compile(checkpointer=saver)


def node_of(seed: str, name: str, kind: str, outside: Outside, depth: int) -> Node | Graph:
    rng = random.Random(seed)
    if kind == "sub":
        return build(seed, rng.choice([None, True, False]), outside, depth + 1)
    asks = {"ask": 1, "twice": 2}.get(kind, 0)
    logs, size = rng.random() < 0.6, rng.choice([1, 1, 200])

    def node(state: Any) -> Any:
        at = f"{name} {len(state['trail'])} {state['trail'][:1]}"
        if kind == "fail":
            outside.fail_once(at)
        said = [interrupt(f"{at} {number}?") for number in range(asks)]
        update: dict[str, Any] = {"trail": [at, *said], "files": {name: [at] * size}}
        if logs:
            update["log"] = [at]
        if kind == "fan":
            sends = [Send(f"{name}-item", {"trail": [f"item {n}"], "log": [], "files": {}}) for n in (1, 2)]
            return Command(update=update, goto=sends)
        return update

    return node


class Side:
    """One saver, one thread, one script; and the names that ids were given."""

    def __init__(self, seed: int, saver: InMemorySaver | DurableSaver, drive: Drive) -> None:
        self.seed, self.saver, self.drive, self.outside = seed, saver, drive, Outside()
        self.config: RunnableConfig = {"configurable": {"thread_id": str(seed)}}
        self.names: dict[str, str] = {}

    def named(self, value: Any) -> str:
        text = _VERSION.sub(lambda m: f"v{int(m[1])}", repr(self._plain(value)))
        return _ID.sub(lambda m: self.names.setdefault(m[0], f"<{len(self.names)}>"), text)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            keys = sorted(value, key=lambda key: _ID.sub("", str(key)))
            return {key: self._plain(value[key]) for key in keys if key != "ts"}
        if isinstance(value, set):
            return sorted(value)
        if isinstance(value, Interrupt):
            return value.value, value.id
        if isinstance(value, PregelTask):
            return [
                self._plain(v) for v in (value.id, value.path, value.error, value.interrupts, value.result)
            ]
        if isinstance(value, (list, tuple)):
            done = [self._plain(v) for v in value]
            return sorted(done, key=str) if value and isinstance(value[0], Interrupt) else done
        return str(value) if isinstance(value, BaseException) else value

    async def observe(self, graph: Graph) -> list[str]:
        """Tell all there is to see: the history, and what is stored in each namespace."""
        seen = []
        for s in await self.drive.history(graph, self.config):
            told = [s.config, s.parent_config, s.next, s.values, s.metadata, s.tasks]
            seen.append(self.named(told))
        stored: dict[str, list[Any]] = {}
        for t in self.saver.list(self.config):
            told = [t.config, t.parent_config, t.checkpoint, t.metadata, t.pending_writes]
            stored.setdefault(t.config["configurable"]["checkpoint_ns"], []).append(told)
        for ns in sorted(stored, key=self.named):
            seen += [self.named(told) for told in stored[ns]]
        if isinstance(self.saver, DurableSaver):
            state = await self.drive.state(graph, self.config)
            assert {i.id for i in state.interrupts} <= {
                w.interrupt_id for w in self.saver.pending_interrupts()
            }
        return seen

    async def act(self, graph: Graph, action: str, rng: random.Random) -> str:
        try:
            return self.named(await self._act(graph, action, rng))
        except Exception as exc:
            return f"{type(exc).__name__}: {self.named(str(exc))}"

    def _act(self, graph: Graph, action: str, rng: random.Random) -> Awaitable[Any]:
        history = list(graph.get_state_history(self.config))
        options: Any = {"durability": rng.choice(["sync", "async", "exit"])}
        given: dict[str, Any] = {
            "trail": [f"in {rng.random()}"],
            "files": {"in": ["x"] * rng.choice([1, 2000])},
        }
        if rng.random() < 0.5:
            given["log"] = ["in"]
        waiting = [s for s in history if s.interrupts]
        if action == "update" and history:
            where = self.config if rng.random() < 0.5 else rng.choice(history).config
            return self.drive.update(graph, where, given, rng.choice([None, *list(graph.nodes)[1:]]))
        if action == "fork" and history:
            return self.drive.invoke(graph, None, rng.choice(history).config, **options)
        if action in ("answer", "late") and waiting:
            state, where = waiting[0], self.config
            if action == "late":
                state = rng.choice(waiting)
                where = state.config
            questions = sorted(state.interrupts, key=lambda i: str(i.value))
            answers: Any = {i.id: f"answer {rng.random()}" for i in questions[: rng.choice([1, 1, 9])]}
            if len(questions) == 1 and rng.random() < 0.5:
                [answers] = answers.values()
            update = {"trail": ["beside"]} if rng.random() < 0.3 else None
            return self.drive.invoke(graph, Command(resume=answers, update=update), where, **options)
        if action == "go on":
            return self.drive.invoke(graph, None, self.config, **options)
        return self.drive.invoke(graph, given, self.config, **options)


async def test_the_same_comes_of_the_same(conninfo: str) -> None:
    for seed in range(EXAMPLES):
        rng = random.Random(f"script {seed}")
        actions = ["run", *rng.choices(["run", "answer", "answer", "late", "go on", "fork", "update"], k=4)]
        # Before Python 3.11 LangGraph gives the nodes of async runs no context to ask in.
        drive = Drive(asynchronous=rng.random() < 0.5 and sys.version_info >= (3, 11))
        async with DurableSaver.from_conn_string(conninfo, group_commit=rng.random() < 0.5) as saver:
            sides = [Side(seed, InMemorySaver(), drive), Side(seed, saver, drive)]
            for number, action in enumerate(actions):
                found = []
                for side in sides:
                    graph = build(str(seed), side.saver, side.outside)
                    result = await side.act(graph, action, random.Random(f"{seed} {number}"))
                    found.append([*await side.observe(graph), result])
                told = "\n".join(difflib.ndiff(found[0], found[1])) if found[0] != found[1] else ""
                assert not told, f"seed {seed}, after {actions[: number + 1]}:\n{told}"
