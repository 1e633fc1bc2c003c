"""`setup`, `schema`, `prune`, `prune-all` and `stats`."""

from __future__ import annotations

import argparse
import json
import re
from datetime import timedelta
from typing import Any

from langgraph_durable.cli.output import (
    add_command,
    add_database_options,
    add_schema_option,
    open_saver,
    progress_bar,
)
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.reports import PruneAllReport, PruneProgress, Removed, StorageStats
from langgraph_durable.schema import schema_sql


def add_maintenance_commands(commands: Any) -> None:
    """Add the commands to a parser's subparsers."""
    setup = add_command(commands, "setup", "create or migrate the tables")
    add_database_options(setup)
    setup.add_argument(
        "--verify-only", action="store_true", help="change nothing; fail unless the tables are current"
    )
    setup.set_defaults(run=_set_up)

    schema = add_command(
        commands, "schema", "print the SQL of the tables, for a role that may create them to run"
    )
    add_schema_option(schema)
    schema.add_argument(
        "--from-version",
        type=int,
        metavar="N",
        help="only the migrations after N, for a database that has those up to N",
    )
    schema.set_defaults(run=_print_schema)

    prune = add_command(
        commands, "prune", "delete old checkpoints of threads; the state of the others is unchanged"
    )
    prune.add_argument("threads", nargs="+", metavar="THREAD")
    _add_prune_options(prune)
    prune.set_defaults(run=_prune)

    prune_all = add_command(
        commands,
        "prune-all",
        "prune every thread, each in a small transaction, and delete writes whose checkpoint was never stored",
    )
    _add_prune_options(prune_all)
    prune_all.add_argument("--after", default="", metavar="THREAD", help="resume after this thread")
    prune_all.add_argument(
        "--effects-older-than",
        type=_age,
        metavar="AGE",
        help="remove the arguments and results of effects that ended at least this long ago",
    )
    prune_all.set_defaults(run=_prune_all)

    stats = add_command(commands, "stats", "show the space that checkpoints take, and what segments save")
    add_database_options(stats)
    stats.add_argument("--thread", metavar="THREAD", help="only this thread, without indexes")
    stats.add_argument("--json", action="store_true", help="as JSON")
    stats.set_defaults(run=_show_stats)


def _add_prune_options(parser: argparse.ArgumentParser) -> None:
    add_database_options(parser)
    parser.add_argument(
        "--keep-last", type=int, metavar="N", help="checkpoints that each namespace keeps (default: 1)"
    )
    parser.add_argument(
        "--older-than",
        type=_age,
        metavar="AGE",
        help="delete only checkpoints of at least this age: 90s, 15m, 12h, 30d",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only count")


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an age: pass a number and one of s, m, h, d, as in 30d"
        )
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        return timedelta(**{units[match[2]]: int(match[1])})
    except (OverflowError, ValueError):  # more days than timedelta holds, or more digits than int() accepts
        raise argparse.ArgumentTypeError(f"{text[:20]!r}... is too long an age") from None


# --- setup, schema ---


def _set_up(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        saver.setup(verify_only=options.verify_only)
    print(f"schema {options.schema!r} is current")
    return 0


def _print_schema(options: argparse.Namespace) -> int:
    print(schema_sql(options.schema, from_version=options.from_version), end="")
    return 0


# --- prune, prune-all ---


def _prune(options: argparse.Namespace) -> int:
    total = Removed({}, {})
    count = len(options.threads)
    with open_saver(options) as saver, progress_bar("pruning", count) as show:
        for number, thread_id in enumerate(options.threads, start=1):
            report = saver.prune(
                [thread_id],
                keep_last=options.keep_last,
                older_than=options.older_than,
                dry_run=options.dry_run,
            )
            total = Removed.sum([total, report.total])
            show(number, count)
    print(_describe(total, f"{count} threads", dry_run=options.dry_run))
    return 0


def _prune_all(options: argparse.Namespace) -> int:
    if options.older_than is None and options.keep_last is None:
        raise InvalidConfigError(
            "prune-all needs to know what it may delete: pass --older-than AGE, --keep-last N, or both"
        )
    with open_saver(options) as saver, progress_bar("pruning", None) as show:

        def progress(step: PruneProgress) -> None:
            show(step.threads_seen, step.threads_total, f"(resume with --after {step.after!r})")

        report = saver.prune_all(
            older_than=options.older_than,
            keep_last=options.keep_last,
            dry_run=options.dry_run,
            after=options.after,
            progress=progress,
            effects_older_than=options.effects_older_than,
        )
    print(_describe_all(report))
    return 0


def _describe(removed: Removed, where: str, *, dry_run: bool) -> str:
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {removed.total_rows} rows, {removed.total_bytes / 1e6:.1f} MB, from {where}"]
    lines += [
        f"  {table}: {rows} rows, {removed.bytes[table] / 1e6:.1f} MB"
        for table, rows in sorted(removed.rows.items())
    ]
    return "\n".join(lines)


def _describe_all(report: PruneAllReport) -> str:
    where = f"{report.threads_pruned} of {report.threads_seen} threads"
    lines = [_describe(report.removed, where, dry_run=report.dry_run)]
    if report.effects_expired:
        lines.append(
            f"  finished effects without arguments and results from now on: {report.effects_expired}"
        )
    if report.effects_orphaned:
        lines.append(
            f"  effects that need a decision and whose thread was deleted: {report.effects_orphaned} "
            "(langgraph-durable effects list)"
        )
    if report.orphan_writes:
        lines.append(f"  writes whose checkpoint was never stored: {report.orphan_writes}")
    return "\n".join(lines)


# --- stats ---


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
        f"every version stored whole: {stats.logical_bytes / 1e6:,.2f} MB; stored: {stats.ratio:.3f} of that"
    )
    return "\n".join(lines)
