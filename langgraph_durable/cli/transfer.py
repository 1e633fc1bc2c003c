"""`import`: threads of other savers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_durable.cli.output import (
    add_command,
    add_database_options,
    escape_unprintable,
    open_saver,
    progress_bar,
)
from langgraph_durable.reports import ImportReport, TransferProgress, VerifyReport
from langgraph_durable.saver import DurableSaver

_LINES = 20
"""Differences and failures that are printed."""
_SECONDS = 0.5
"""Between two lines of progress, or changes of the bar."""


def add_transfer_commands(commands: Any) -> None:
    """Add the commands to a parser's subparsers."""
    import_ = add_command(commands, "import", "import the threads of another saver's database")
    add_database_options(import_)
    import_.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help="connection string of a database of langgraph-checkpoint-postgres, or sqlite:PATH",
    )
    import_.add_argument(
        "--from-schema", metavar="NAME", help="schema of the source's tables (default: its search path)"
    )
    import_.add_argument("--thread", action="append", metavar="ID", help="only this thread; may be repeated")
    import_.add_argument(
        "--on-existing",
        choices=("skip", "refuse"),
        default="skip",
        help="whether threads that exist here are skipped, or refused before anything is imported",
    )
    import_.add_argument(
        "--batch", type=int, default=100, metavar="N", help="checkpoints to read at a time (default: 100)"
    )
    import_.add_argument(
        "--allow-pickle",
        action="store_true",
        help="load pickled values of the source, which can run code: only of a source that you trust",
    )
    import_.add_argument("--dry-run", action="store_true", help="read and decode everything, store nothing")
    import_.add_argument(
        "--verify", action="store_true", help="then load every checkpoint from both, and compare"
    )
    import_.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    serde = JsonPlusSerializer(pickle_fallback=True) if options.allow_pickle else None
    with open_saver(options, serde=serde) as saver:
        with _progress("importing") as progress:
            report = saver.import_from(
                options.source,
                thread_ids=options.thread,
                on_existing=options.on_existing,
                batch=options.batch,
                dry_run=options.dry_run,
                source_schema=options.from_schema,
                progress=progress,
            )
        print(_describe(report))
        _print_failures("not imported", report.failures)
        is_equal = _verify(saver, options) if options.verify else True
    return 0 if is_equal and not report.failures else 1


def _verify(saver: DurableSaver, options: argparse.Namespace) -> bool:
    with _progress("comparing") as progress:
        report = saver.verify_import(
            options.source,
            thread_ids=options.thread,
            batch=options.batch,
            source_schema=options.from_schema,
            progress=progress,
        )
    print(_describe_verification(report))
    for difference in report.differences[:_LINES]:
        print(
            escape_unprintable(
                f"  thread {difference.thread_id!r}, namespace {difference.checkpoint_ns!r}, "
                f"checkpoint {difference.checkpoint_id!r}: {difference.what}"
            )
        )
    _print_rest(len(report.differences))
    _print_failures("not compared", report.failures)
    return report.is_equal


def _describe(report: ImportReport) -> str:
    verb = "would import" if report.dry_run else "imported"
    lines = [
        f"{verb} {report.threads} threads: {report.checkpoints} checkpoints, {report.writes} pending writes"
    ]
    for count, what in (
        (report.threads_existing, "exist here already, and were left unchanged"),
        (report.threads_deleted, "were deleted here, and are not brought back"),
        (report.threads_unknown, "are not in the source"),
    ):
        if count:
            lines.append(f"  {count} threads {what}")
    return "\n".join(lines)


def _describe_verification(report: VerifyReport) -> str:
    found = f"{len(report.differences)} differences" if report.differences else "no differences"
    return f"compared {report.checkpoints} checkpoints of {report.threads} threads: {found}"


def _print_failures(what: str, failures: Mapping[str, Exception]) -> None:
    for thread_id, exc in list(failures.items())[:_LINES]:
        print(
            escape_unprintable(f"{what}: thread {thread_id!r}: {type(exc).__name__}: {exc}"), file=sys.stderr
        )
    if len(failures) > _LINES:
        print(f"{what}: {len(failures) - _LINES} more threads", file=sys.stderr)


def _print_rest(count: int) -> None:
    if count > _LINES:
        print(f"  and {count - _LINES} more")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[TransferProgress], None]]:
    """Show progress: a bar on a terminal, else lines."""
    with progress_bar(what, None) as show:
        shown = 0.0

        def progress(step: TransferProgress) -> None:
            nonlocal shown
            if time.monotonic() >= shown + _SECONDS or step.threads_done == step.threads_total:
                shown = time.monotonic()
                show(step.threads_done, step.threads_total)

        yield progress
