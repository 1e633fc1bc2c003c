"""What the commands share: the saver they open, and how they show what others stored."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from langgraph_durable._inspect.plain_json import plain
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.saver import DurableSaver


def add_command(commands: Any, name: str, what: str) -> argparse.ArgumentParser:
    """Add a command to a parser's, which says what it does in the list of commands and in its own help."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    return made


def open_saver(options: argparse.Namespace) -> DurableSaver:
    """Return a saver on the database and schema that a command was given.

    Raises:
        InvalidConfigError: It was given no database, or one that cannot be used.
    """
    if options.database is None:
        raise InvalidConfigError("no database: pass --database CONNINFO, or set DATABASE_URL")
    return DurableSaver.from_conn_string(options.database, schema=options.schema)


def row(widths: Sequence[int], *cells: str) -> str:
    """Return a line of a table."""
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def short(value: Any, length: int) -> str:
    """Return a value as text, else as JSON, cut to a length."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return escape_unprintable(text if len(text) <= length else text[: length - 1] + "…")


def escape_unprintable(text: str) -> str:
    """Return a text as one line of a terminal, whatever somebody stored in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show_age(age: timedelta) -> str:
    """Return an age in its largest unit."""
    seconds = int(age.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
