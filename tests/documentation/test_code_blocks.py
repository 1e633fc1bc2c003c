"""Every Python block of README and docs runs, alone.

A block gets an empty database in the environment's DATABASE_URL. Where a page's context makes it natural that a block
uses `saver` or `graph`, the comment `<!-- after: NAME -->` before it, which readers do not see, names a file in
`preambles/` that runs first. An `output` block right after a Python block is what it prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.markdown import ROOT, Block, code_blocks

PREAMBLES = Path(__file__).parent / "preambles"
BLOCKS = code_blocks("python")

LOSE_THE_ANSWER = """
import os
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph_durable import DurableSaver

class Payments(dict):
    def setdefault(self, key, value):
        if self.setdefault_once(key, value):
            raise ConnectionResetError("the answer was lost")
        return self[key]

    def setdefault_once(self, key, value):
        first = not self
        super().setdefault(key, value)
        return first

payments = Payments()
call = {"name": "charge", "args": {"invoice": "INV-7", "cents": 4200}, "id": "1"}
builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=[call])]})
builder.add_node("tools", ToolNode([charge], handle_tool_errors=False))
builder.add_edge(START, "model").add_edge("model", "tools")
with DurableSaver.from_conn_string(os.environ["DATABASE_URL"]) as saver:
    saver.setup()
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "invoice-7"}}
    try:
        graph.invoke({"messages": [("user", "pay")]}, config)
    except ConnectionResetError as exc:
        print(exc)
    print(graph.invoke(None, config)["messages"][-1].content)
    print(len(payments), "payment")
"""
"""Runs the README's tool in a graph, with a provider whose first answer is lost."""


class Runner:
    """Runs programs made of parts, each in a separate process."""

    def __init__(self, server: subprocess.Popen[str], directory: Path) -> None:
        self._server = server
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"

    def run(self, parts: list[tuple[str, int, str]], database_url: str) -> tuple[int, str, str]:
        """Return exit status, standard output and standard error."""
        request = {
            "parts": parts,
            "database_url": database_url,
            "stdout": str(self._stdout),
            "stderr": str(self._stderr),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        return status, self._stdout.read_text(), self._stderr.read_text()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.documentation.run_blocks"],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path_factory.mktemp("cwd"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield Runner(server, tmp_path_factory.mktemp("output"))
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(timeout=10) == 0


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_runs_alone(block: Block, runner: Runner, empty_conninfo: str) -> None:
    parts = [(str(block), block.line, block.text)]
    if block.preamble is not None:
        preamble = PREAMBLES / f"{block.preamble}.py"
        parts.insert(0, (str(preamble), 1, preamble.read_text()))
    status, stdout, stderr = runner.run(parts, empty_conninfo)
    assert status == 0, stderr
    assert "Exception ignored" not in stderr
    if block.output is not None:
        assert stdout == block.output


def test_tool_of_the_readme_pays_once(runner: Runner, empty_conninfo: str) -> None:
    [block] = [block for block in BLOCKS if block.page.name == "README.md" and "def charge" in block.text]
    parts = [(str(block), block.line, block.text), ("lose_the_answer", 1, LOSE_THE_ANSWER)]
    status, stdout, stderr = runner.run(parts, empty_conninfo)
    assert status == 0, stderr
    assert stdout.splitlines() == ["the answer was lost", "INV-7: 4200 cents", "1 payment"]


def test_blocks_are_found() -> None:
    pages = {block.page.name for block in BLOCKS}
    assert len(BLOCKS) >= 35
    assert {"README.md", "quickstart.md", "effects.md", "retention.md"} <= pages


def test_every_preamble_is_used() -> None:
    assert {path.stem for path in PREAMBLES.glob("*.py")} == {block.preamble for block in BLOCKS} - {None}


def test_failing_block_is_reported_with_its_line(runner: Runner, empty_conninfo: str) -> None:
    status, _, stderr = runner.run([("page.md:7", 7, "first = 1\nfirst / 0\n")], empty_conninfo)
    assert status == 1
    assert 'File "page.md:7", line 8' in stderr
    assert "ZeroDivisionError" in stderr
