"""The commands that README and docs name exist: make targets, extras, examples, commands and their options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import lru_cache

import pytest

from tests.documentation.markdown import PAGES, ROOT, Block, code_blocks

SHELL = code_blocks("sh")
COMMAND = re.compile(
    r"(?:python -m langgraph_durable|langgraph-durable) ((?:effects )?[a-z]+(?:-[a-z]+)*)([^`\n]*)"
)


def _makefile() -> str:
    return (ROOT / "Makefile").read_text()


def _has_target(name: str) -> bool:
    return re.search(rf"^{re.escape(name)}:.*##", _makefile(), flags=re.MULTILINE) is not None


def _words(pattern: str) -> list[str]:
    """Return what a pattern finds in the text of all pages, once each."""
    return sorted({found for page in PAGES for found in re.findall(pattern, page.read_text())})


@pytest.mark.parametrize("target", _words(r"(?:`|\n)make ([a-z-]+)"))
def test_make_target_exists(target: str) -> None:
    assert _has_target(target)


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):.*##", _makefile(), flags=re.MULTILINE))
def test_make_target_is_documented(target: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()
    assert f"make {target}" in text


@pytest.mark.parametrize("extra", _words(r"langgraph-durable\[([a-z,]+)\]"))
def test_extra_exists(extra: str) -> None:
    optional = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    names = re.findall(r"^([a-z]+) = \[", optional.partition("\n[")[0], flags=re.MULTILINE)
    assert set(extra.split(",")) <= set(names)


@pytest.mark.parametrize("example", _words(r"examples/(\w+)\.py"))
def test_example_exists(example: str) -> None:
    assert (ROOT / "examples" / f"{example}.py").is_file()


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell_block_runs_only_what_is_checked(block: Block) -> None:
    known = {
        "make",
        "pip",
        "python",
        "langgraph-durable",
        "git",
        "docker",
        "export",
        "psql",
        ".venv/bin/python",
    }
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert not words or words[0] in known, line


@lru_cache
def _help_of(command: str) -> str | None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-m", "langgraph_durable", *command.split(), "--help"],
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return ended.stdout if ended.returncode == 0 else None


@pytest.mark.parametrize(
    ("command", "rest"),
    sorted({found for page in PAGES for found in COMMAND.findall(page.read_text())}),
)
def test_command_exists_with_its_options(command: str, rest: str) -> None:
    text = _help_of(command)
    assert text is not None, f"there is no command {command!r}"
    for option in re.findall(r"--[a-z-]+", rest):
        assert re.search(rf"{option}\b", text), f"{command} has no option {option}"
