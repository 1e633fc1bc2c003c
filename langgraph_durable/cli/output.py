"""What the commands share: options, the saver, progress, and formatting of stored values."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._plain_json import plain
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.saver import DurableSaver
from langgraph_durable.schema import DEFAULT_SCHEMA

# --- options ---


def add_command(commands: Any, name: str, what: str) -> argparse.ArgumentParser:
    """Add a command, with its description in the list of commands and in its own help."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    return made


def add_schema_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the schema."""
    parser.add_argument(
        "--schema", default=DEFAULT_SCHEMA, help="database schema of the tables (default: %(default)s)"
    )


def add_database_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the schema and the database."""
    add_schema_option(parser)
    parser.add_argument(
        "--database",
        metavar="CONNINFO",
        default=os.environ.get("DATABASE_URL") or None,
        help="Postgres connection string (default: the environment's DATABASE_URL)",
    )


def open_saver(options: argparse.Namespace, serde: SerializerProtocol | None = None) -> DurableSaver:
    """Return a saver on the database and schema of a command's options.

    Raises:
        InvalidConfigError: No database was given, or the connection string is invalid.
    """
    if options.database is None:
        raise InvalidConfigError("no database: pass --database CONNINFO, or set DATABASE_URL")
    return DurableSaver.from_conn_string(options.database, schema=options.schema, serde=serde)


# --- progress ---


class ShowProgress(Protocol):
    """A function that shows progress."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show how many threads are done, of how many if known, and a note."""


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[ShowProgress]:
    """Show progress on standard error: a bar on a terminal (with the extra [cli]), else lines."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        bar = None
    else:
        console = Console(stderr=True)
        bar = Progress(console=console) if console.is_terminal else None
    if bar is None:

        def print_line(done: int, total: int | None, note: str = "") -> None:
            print(f"{what}: {done} of {total} threads {note}".rstrip(), file=sys.stderr)

        yield print_line
        return
    with bar:
        task = bar.add_task(what, total=total)

        def update(done: int, total: int | None, note: str = "") -> None:
            bar.update(task, completed=done, total=total)

        yield update


# --- text ---


def row(widths: Sequence[int], *cells: str) -> str:
    """Return a line of a table."""
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def short(value: Any, length: int) -> str:
    """Return a text, or another value as JSON, cut to a length."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return escape_unprintable(text if len(text) <= length else text[: length - 1] + "…")


def escape_unprintable(text: str) -> str:
    """Return a text as one line that is safe on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_age(age: timedelta) -> str:
    """Return an age in its largest unit."""
    seconds = int(age.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
