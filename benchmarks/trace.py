"""Count the modules that one call passes through: `python -m benchmarks.trace`.

Exits 1 if a call passes through more modules than its target. Only frames of this package are counted, by the sync
API. Each call is warm: its second time on the same saver.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import langgraph_durable
from langgraph_durable import DurableSaver, effect, embedded

PACKAGE = str(Path(langgraph_durable.__file__).parent) + "/"
TARGETS = {"put": 10, "get_tuple": 9, "list of 4": 10, "@effect": 12}
"""Call -> the largest number of modules it should pass through."""


@dataclass
class CallPath:
    """The frames of this package that one call enters.

    Attributes:
        modules: Files relative to the package, in the order they were first entered.
        switches: How often a frame is entered in another module than the frame entered before it.
        depth: The largest number of the package's frames on the stack at once.
    """

    modules: list[str] = field(default_factory=list)
    switches: int = 0
    depth: int = 0


def trace(call: Callable[[], Any]) -> CallPath:
    """Run `call` once and return its path through the package, in this thread."""
    path = CallPath()
    depth, last = 0, ""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, last
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return
        if event == "call":  # also when a generator or coroutine resumes
            depth += 1
            path.depth = max(path.depth, depth)
            if file != last:
                path.switches += bool(last)
                last = file
            if (module := file.removeprefix(PACKAGE)) not in path.modules:
                path.modules.append(module)
        elif event == "return":
            depth -= 1

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return path


def trace_saver(saver: DurableSaver) -> dict[str, CallPath]:
    """Trace put, get_tuple and list on a saver whose tables exist, in a new thread of five checkpoints."""
    thread: RunnableConfig = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    latest = thread
    version: Any = None

    def checkpoint() -> tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]:
        nonlocal version
        version = saver.get_next_version(version, None)
        made = empty_checkpoint()
        made["v"] = 4
        made["channel_values"] = {"text": {"body": "x" * 2000}}
        made["channel_versions"] = {"text": version}
        return latest, made, {"source": "loop", "step": 0}, {"text": version}

    def read() -> None:
        assert saver.get_tuple(thread) is not None

    def walk() -> None:
        assert len(list(saver.list(thread, limit=4))) == 4

    for _ in range(4):
        latest = saver.put(*checkpoint())
    arguments = checkpoint()
    paths = {"put": trace(lambda: saver.put(*arguments))}
    for name, call in (("get_tuple", read), ("list of 4", walk)):
        call()
        paths[name] = trace(call)
    return paths


class State(TypedDict, total=False):
    """Of the graph that calls the effect."""

    number: int
    result: str


def trace_effect(saver: DurableSaver) -> CallPath:
    """Trace a function with @effect, called by a node: the second call of the node."""
    found: list[CallPath] = []

    @effect()
    def pay(number: int) -> str:
        return f"paid {number}"

    def node(state: State) -> State:
        pay(1)
        found.append(trace(lambda: pay(2)))
        return {"result": "paid"}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph: Any = builder.compile(checkpointer=saver)
    graph.invoke({"number": 1}, {"configurable": {"thread_id": str(uuid4())}}, durability="sync")
    return found[0]


def trace_all(conninfo: str) -> dict[str, CallPath]:
    """Trace every call of TARGETS on a database; the tables are created if they are missing."""
    with DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        return trace_saver(saver) | {"@effect": trace_effect(saver)}


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--modules", action="store_true", help="also name the modules of each path")
    options = parser.parse_args()
    with embedded.database() as conninfo:
        paths = trace_all(conninfo)
    print(f"{'call':<12} {'modules':>7} {'target':>7} {'switches':>9} {'depth':>6}")
    for name, path in paths.items():
        print(
            f"{name:<12} {len(path.modules):>7} {f'<= {TARGETS[name]}':>7} {path.switches:>9} {path.depth:>6}"
        )
        for module in path.modules if options.modules else ():
            print(f"    {module}")
    exceeded = [name for name, path in paths.items() if len(path.modules) > TARGETS[name]]
    if exceeded:
        print(f"more modules than the target: {', '.join(exceeded)}", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
