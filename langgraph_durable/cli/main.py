"""The command line: `python -m langgraph_durable COMMAND`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from langgraph_durable import __version__
from langgraph_durable.cli.effects import add_effects_commands
from langgraph_durable.cli.inspect import add_reading_commands
from langgraph_durable.cli.output import add_command, open_saver
from langgraph_durable.errors import DurableError, InvalidConfigError
from langgraph_durable.reports import PruneProgress, Removed, StorageStats
from langgraph_durable.schema import DEFAULT_SCHEMA, schema_sql


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0, or 1 after an error, told on standard error, or 2 for a command that is none, or 130
        after an interrupt from the keyboard.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (DurableError, psycopg.Error) as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, `head` perhaps, had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the last flush complains again
        return 0
    except KeyboardInterrupt:  # each thread of a sweep was pruned in a transaction of its own, or not at all
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m langgraph_durable", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    schema = add_command(
        commands, "schema", "print the SQL of the tables, for roles that may not create them"
    )
    _add_schema_option(schema)
    schema.set_defaults(run=_print_schema)

    setup = add_command(commands, "setup", "create or migrate the tables")
    _add_schema_option(setup)
    _add_database_option(setup)
    setup.add_argument(
        "--verify-only", action="store_true", help="change nothing; fail if they are not current"
    )
    setup.set_defaults(run=_set_up)

    prune = add_command(commands, "prune", "delete old checkpoints of threads; what survives stays as it is")
    prune.add_argument("threads", nargs="+", metavar="THREAD")
    _add_removal_options(prune)
    prune.set_defaults(run=_prune)

    sweep = add_command(
        commands,
        "prune_all",
        "prune every thread, one small transaction each, and remove writes nobody will ask for",
    )
    _add_removal_options(sweep)
    sweep.add_argument("--after", default="", metavar="THREAD", help="resume after this thread")
    sweep.add_argument(
        "--effects-older-than",
        type=_age,
        metavar="AGE",
        help="drop what is kept of effects that ended so long ago",
    )
    sweep.set_defaults(run=_prune_all)

    stats = add_command(commands, "stats", "show what checkpoints take, and what segments save")
    _add_schema_option(stats)
    _add_database_option(stats)
    stats.add_argument("--thread", metavar="THREAD", help="only of this thread, without indexes")
    stats.add_argument("--json", action="store_true", help="as JSON")
    stats.set_defaults(run=_show_stats)

    def add_options(command: argparse.ArgumentParser) -> None:
        _add_schema_option(command)
        _add_database_option(command)

    add_effects_commands(commands, add_options)
    add_reading_commands(commands, add_options)
    return parser


def _add_removal_options(parser: argparse.ArgumentParser) -> None:
    _add_schema_option(parser)
    _add_database_option(parser)
    parser.add_argument(
        "--keep-last", type=int, metavar="N", help="checkpoints each namespace keeps (default: 1)"
    )
    parser.add_argument(
        "--older-than",
        type=_age,
        metavar="AGE",
        help="delete only what is at least this old: 90s, 15m, 12h, 30d",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only count")


def _add_schema_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schema", default=DEFAULT_SCHEMA, help="database schema of the tables (default: %(default)s)"
    )


def _add_database_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="CONNINFO",
        default=os.environ.get("DATABASE_URL") or None,
        help="Postgres connection string (default: the environment's DATABASE_URL)",
    )


def _print_schema(options: argparse.Namespace) -> int:
    print(schema_sql(options.schema), end="")
    return 0


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: a number and one of s, m, h, d, as in 30d")
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        return timedelta(**{units[match[2]]: int(match[1])})
    except (OverflowError, ValueError):  # more days than Python counts, or more digits than it reads
        raise argparse.ArgumentTypeError(f"{text[:20]!r}... is too long an age") from None


def _prune(options: argparse.Namespace) -> int:
    total = Removed({}, {})
    with (
        open_saver(options) as saver,
        progress_bar("pruning", len(options.threads)) as show,
    ):
        for number, thread_id in enumerate(options.threads, start=1):
            report = saver.prune(
                [thread_id],
                keep_last=options.keep_last,
                older_than=options.older_than,
                dry_run=options.dry_run,
            )
            total = Removed.sum([total, report.total])
            show(number)
    print(_told(total, f"{len(options.threads)} threads", dry_run=options.dry_run))
    return 0


def _prune_all(options: argparse.Namespace) -> int:
    if options.older_than is None and options.keep_last is None:
        raise InvalidConfigError("say what a sweep may delete: pass --older-than AGE, --keep-last N, or both")
    with (
        open_saver(options) as saver,
        progress_bar("sweeping", None) as show,
    ):

        def progress(step: PruneProgress) -> None:
            show(step.threads_seen, step.threads_total, f"--after {step.after!r} resumes here")

        report = saver.prune_all(
            older_than=options.older_than,
            keep_last=options.keep_last,
            dry_run=options.dry_run,
            after=options.after,
            progress=progress,
            effects_older_than=options.effects_older_than,
        )
    print(
        _told(
            report.removed,
            f"{report.threads_pruned} of {report.threads_seen} threads",
            dry_run=report.dry_run,
        )
    )
    if report.effects_expired:
        print(f"  {report.effects_expired} finished effects lost their arguments and results")
    if report.effects_orphaned:
        print(
            f"  {report.effects_orphaned} effects of threads that are gone need a decision: "
            "python -m langgraph_durable effects list"
        )
    if report.orphan_writes:
        print(f"  {report.orphan_writes} writes whose checkpoint never came")
    return 0


def _told(removed: Removed, where: str, *, dry_run: bool) -> str:
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {removed.total_rows} rows, {removed.total_bytes / 1e6:.1f} MB, from {where}"]
    lines += [
        f"  {table}: {rows} rows, {removed.bytes[table] / 1e6:.1f} MB"
        for table, rows in sorted(removed.rows.items())
    ]
    return "\n".join(lines)


def _show_stats(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        stats = saver.storage_stats(options.thread)
    print(_stats_as_json(stats) if options.json else _stats_as_table(stats))
    return 0


def _stats_as_json(stats: StorageStats) -> str:
    record = {
        "thread_id": stats.thread_id,
        "tables": {name: {"rows": t.rows, "bytes": t.bytes} for name, t in stats.tables.items()},
        "rows": stats.total_rows,
        "bytes": stats.total_bytes,
        "logical_bytes": stats.logical_bytes,
        "ratio": stats.ratio,
    }
    return json.dumps(record, indent=2)


def _stats_as_table(stats: StorageStats) -> str:
    rows = [(name, table.rows, table.bytes) for name, table in stats.tables.items()]
    rows.append(("total", stats.total_rows, stats.total_bytes))
    lines = [f"{'table':<16} {'rows':>12} {'MB':>12}"]
    lines += [f"{name:<16} {count:>12,} {size / 1e6:>12,.2f}" for name, count, size in rows]
    lines.append(
        f"every version whole: {stats.logical_bytes / 1e6:,.2f} MB, so it takes {stats.ratio:.3f} of that"
    )
    return "\n".join(lines)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show progress on standard error: a bar on a terminal (with the extra [cli]), else a line now and then."""
    try:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        bar = Progress(console=console) if console.is_terminal else None
    except ImportError:
        bar = None
    if bar is None:
        yield lambda done, of=total, note="": print(f"{what}: {done} of {of} threads {note}", file=sys.stderr)
        return
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of=total, note="": bar.update(task, completed=done, total=of)


def _set_up(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        saver.setup(verify_only=options.verify_only)
    print(f"schema {options.schema!r} is current")
    return 0
