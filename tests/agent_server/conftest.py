"""A real `langgraph dev` server on a project of its directory, and a client of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.vendor import Vendor, running_vendor

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "project"
STARTUP_TIMEOUT = 90.0

INSTALLED = importlib.util.find_spec("langgraph_api") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where the Agent Server is not installed."""
    if INSTALLED:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip("the Agent Server is not installed: make agent-server"))


class Server:
    """One `langgraph dev` on a copy of a project, which may be killed and started again."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.log = directory / "server.log"
        self._environment = os.environ | {
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGSMITH_TRACING": "false",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while not self._answers():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.1)

    def launch(self) -> None:
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=self.directory,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ok", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Kill every process of it."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> str:
        """Stop it as Ctrl-C does; return its log."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.log.read_text()

    def connect(self) -> Any:
        """Return a client, to be closed by `async with`."""
        from langgraph_sdk import get_client

        return get_client(url=self.url)


@pytest.fixture(scope="session")
def vendor() -> Iterator[Vendor]:
    with running_vendor() as made:
        yield made


Serve = Callable[..., Server]


@contextmanager
def servers(directory: Path, conninfo: str, vendor: Vendor) -> Iterator[Serve]:
    """Yield a function that makes servers, which are killed in the end."""
    made: list[Server] = []

    def serve(project: Path = PROJECT, *, started: bool = True, **environment: str) -> Server:
        place = directory / f"project-{len(made)}"
        shutil.copytree(project, place)
        basic = {
            "LANGGRAPH_DURABLE_DSN": conninfo,
            "STEPS_DIRECTORY": str(place),
            "VENDOR_PORT": str(vendor.port),
        }
        made.append(Server(place, basic | environment))
        if started:
            made[-1].start()
        return made[-1]

    try:
        yield serve
    finally:
        for server in made:
            if server.process is not None and server.process.poll() is None:
                server.kill()


@pytest.fixture
def serve(tmp_path: Path, empty_conninfo: str, vendor: Vendor) -> Iterator[Serve]:
    """Make servers on a database of the test's own."""
    with servers(tmp_path, empty_conninfo, vendor) as made:
        yield made


@pytest.fixture(scope="module")
def shared_conninfo(databases: Any) -> Iterator[str]:
    name = databases.create()
    yield databases.conninfo(name)
    databases.drop(name)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, shared_conninfo: str, vendor: Vendor
) -> Iterator[Server]:
    """One server for the tests that leave it running."""
    with servers(tmp_path_factory.mktemp("shared"), shared_conninfo, vendor) as make:
        yield make()


@pytest.fixture
async def client(shared: Server) -> AsyncIterator[Any]:
    async with shared.connect() as made:
        yield made
