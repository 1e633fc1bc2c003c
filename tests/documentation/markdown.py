"""Read the Markdown files of the project: code blocks, headings and links, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
"""Every Markdown file that a reader of the repository is meant to read."""

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>[^`\n]*)\n(?P<text>.*?)^(?P=ticks)[ ]*$", re.MULTILINE | re.DOTALL
)
_MARKER = re.compile(r"<!-- after: (?P<name>\w+) -->\s*\Z")
_OUTPUT = re.compile(r"\s*```output\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    line: int
    """The line of its first line of code."""
    language: str
    text: str
    preamble: str | None
    """The name in `<!-- after: NAME -->` right before it."""
    output: str | None
    """The text of the `output` block right after it."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def code_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages."""
    return [block for page in PAGES for block in _blocks_of(page) if block.language in languages]


def _blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        marker = _MARKER.search(text, 0, found.start())
        output = _OUTPUT.match(text, found.end())
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"].strip(),
            text=found["text"],
            preamble=marker["name"] if marker else None,
            output=output["text"] if output else None,
        )


def prose(page: Path) -> str:
    """Return a page without its code blocks, which keep their number of lines."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """Return the texts of a page's headings."""
    return [found["text"] for found in _HEADING.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and MyST give a page's headings."""
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings(page)}


def links(page: Path) -> list[tuple[int, str]]:
    """Return line and target of each link of a page."""
    text = prose(page)
    return [(text.count("\n", 0, found.start()) + 1, found["target"]) for found in _LINK.finditer(text)]
