"""Worker processes: each runs one graph on one thread, and stands still at a named node until it is killed.

`python -m tests.acceptance.workers REQUEST`, where REQUEST is a JSON object, see `Request`. A worker appends
the name of each node that starts to a file, prints "reached" when it stands still, and prints its result.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance import graphs, subgraphs
from tests.acceptance.driving import thread

BUILDERS: dict[str, graphs.Builder] = {
    "ask": graphs.ask,
    "ask_twice": graphs.ask_twice,
    "chain": graphs.chain,
    "delta": graphs.delta,
    "delta_chain": graphs.delta_chain,
    "fan_out": graphs.fan_out,
    "long_chain": graphs.long_chain,
    "nested": subgraphs.nested,
    "parallel_asks": graphs.parallel_asks,
    "workflow": graphs.workflow,
}

_PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Request:
    """What a worker is to do."""

    graph: str
    conninfo: str
    record: str
    asynchronous: bool
    durability: str = "sync"
    thread_id: str = "thread"
    input: Any = None
    resume: Any = None
    stop_at: str | None = None
    """The node to stand still in."""
    kill_at: int | None = None
    """The number of the node start to kill itself at, counted from 1."""

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.workers", json.dumps(asdict(self))],
            cwd=_PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> Any:
        """Run the worker to its end and return its result."""
        with self.start() as worker:
            output, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        return json.loads(output)

    @contextmanager
    def standing_still(self) -> Iterator[subprocess.Popen[str]]:
        """Run the worker until it stands still; kill it in the end."""
        assert self.stop_at is not None
        with self.start() as worker:
            try:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "reached\n"
                yield worker
            finally:
                worker.kill()


def recorded(record: str) -> list[str]:
    path = Path(record)
    return path.read_text().splitlines() if path.exists() else []


class _Recorder:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock, Path(self._request.record).open("a") as file:
            self._count += 1
            file.write(name + "\n")
        if self._count == self._request.kill_at:
            os.kill(os.getpid(), 9)
        if name == self._request.stop_at:
            print("reached", flush=True)
            sys.stdin.read()  # until killed


def _run(request: Request) -> Any:
    saver = DurableSaver.from_conn_string(request.conninfo)
    graph = BUILDERS[request.graph](saver, _Recorder(request))
    given = Command(resume=request.resume) if request.resume is not None else request.input
    config: RunnableConfig = thread(request.thread_id)
    options: dict[str, Any] = {"durability": request.durability}
    if request.asynchronous:
        return asyncio.run(graph.ainvoke(given, config, **options))
    return graph.invoke(given, config, **options)


if __name__ == "__main__":
    result = _run(Request(**json.loads(sys.argv[1])))
    print(json.dumps(result, default=str))
