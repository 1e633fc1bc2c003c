"""The pages hold together: links lead somewhere, figures agree, and what exists is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from langgraph_durable import errors
from tests.documentation.markdown import PAGES, ROOT, anchors, code_blocks, headings, links, prose

DOCS = ROOT / "docs"
README = ROOT / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for line, target in links(page):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{line}: {target}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_at_most_120_wide(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [number for number, line in enumerate(lines, start=1) if len(line) > 120] == []


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = {
        (block.page.parent / f"{name}.md").resolve()
        for block in code_blocks("{toctree}")
        for name in block.text.split()
        if not name.startswith(":")
    }
    assert {page for page in DOCS.rglob("*.md") if page != DOCS / "index.md"} == listed


def test_every_error_has_a_heading_and_every_heading_an_error() -> None:
    defined = {
        value.__name__
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.DurableError)
    }
    assert {text for text in headings(DOCS / "errors.md") if text.endswith("Error")} == defined


def test_figures_of_the_readme_are_in_the_benchmarks_page() -> None:
    rows = [line for line in prose(README).splitlines() if re.match(r"\|.* (ms|MB|puts/s|s) ", line)]
    assert len(rows) >= 4
    benchmarks = (DOCS / "benchmarks.md").read_text()
    assert [row for row in rows if row not in benchmarks] == []


def test_every_promise_names_a_test_that_exists() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)` \|$", (DOCS / "guarantees.md").read_text(), flags=re.MULTILINE)
    assert len(named) >= 15
    assert [path for path in named if not (ROOT / "tests" / path).is_file()] == []


def test_no_page_names_an_address_that_does_not_exist() -> None:
    hosts = {
        host
        for page in [*PAGES, ROOT / "pyproject.toml"]
        for host in re.findall(r"https?://([\w.-]+)", page.read_text())
    }
    assert hosts <= {
        "docs.langchain.com",
        "github.com",
        "keepachangelog.com",
        "langchain-ai.github.io",
        "opentelemetry.io",
        "packaging.python.org",
        "pypi.org",
        "semver.org",
        "www.pgbouncer.org",
        "www.postgresql.org",
    }
    repositories = {
        path
        for page in [*PAGES, ROOT / "pyproject.toml"]
        for path in re.findall(r"https?://github\.com/([\w./-]+)", page.read_text())
    }
    assert repositories <= {"ulid/spec"}
