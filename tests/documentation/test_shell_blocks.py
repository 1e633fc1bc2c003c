"""The commands that README and docs name exist: make targets, extras, examples, commands and their options."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache

import pytest

from langgraph_durable.cli.main import main
from tests.documentation.markdown import PAGES, ROOT, Block, code_blocks

SHELL = code_blocks("sh")
COMMAND = re.compile(
    r"(?:python -m langgraph_durable|langgraph-durable) ((?:effects )?[a-z]+(?:-[a-z]+)*)([^`\n]*)"
)
ROW = re.compile(r"^\| `([a-z -]+?)(?: [A-Z. ]+)?` \| [^|]+ \| ([^|]*) \|$", flags=re.MULTILINE)
"""A row of the table of commands: the command, and its options."""


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
    """Return what a command's --help prints, or None if there is no such command."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    return printed.getvalue() if ended.value.code == 0 else None


def _require_options(command: str, options: str) -> None:
    text = _help_of(command)
    assert text is not None, f"there is no command {command!r}"
    for option in re.findall(r"--[a-z-]+", options):
        assert re.search(rf"{option}\b", text), f"{command} has no option {option}"


def _commands() -> list[tuple[str, str]]:
    """Return each command that a shell block or code in prose shows, with the rest of its line."""
    code = [code for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text())]
    lines = [line for block in SHELL for line in block.text.splitlines()]
    return sorted({(found[1], found[2]) for text in code + lines if (found := COMMAND.match(text))})


@pytest.mark.parametrize(("command", "rest"), _commands())
def test_command_exists_with_its_options(command: str, rest: str) -> None:
    _require_options(command, rest)


def test_table_of_commands_is_complete_and_right() -> None:
    rows = dict(ROW.findall((ROOT / "docs" / "cli.md").read_text()))
    for command, options in rows.items():
        _require_options(command, options)
    listed = {command.split()[0] for command in rows}
    listing = _help_of("")
    assert listing is not None
    assert set(re.findall(r"^    ([a-z-]+)", listing, flags=re.MULTILINE)) == listed
