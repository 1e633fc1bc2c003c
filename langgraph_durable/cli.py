"""The command line: `python -m langgraph_durable COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import psycopg

from langgraph_durable import __version__
from langgraph_durable.errors import DurableError
from langgraph_durable.saver import DurableSaver
from langgraph_durable.schema import DEFAULT_SCHEMA, schema_sql


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0, or 1 after an error, told on standard error, or 2 for a command that is none.
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
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m langgraph_durable", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    schema = commands.add_parser(
        "schema", help="print the SQL of the tables, for roles that may not create them"
    )
    _add_schema_option(schema)
    schema.set_defaults(run=_print_schema)

    setup = commands.add_parser("setup", help="create or migrate the tables")
    _add_schema_option(setup)
    _add_database_option(setup)
    setup.add_argument(
        "--verify-only", action="store_true", help="change nothing; fail if they are not current"
    )
    setup.set_defaults(run=_set_up)
    return parser


def _add_schema_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schema", default=DEFAULT_SCHEMA, help="database schema of the tables (default: %(default)s)"
    )


def _add_database_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="CONNINFO",
        default=os.environ.get("DATABASE_URL"),
        required="DATABASE_URL" not in os.environ,
        help="Postgres connection string (default: the environment's DATABASE_URL)",
    )


def _print_schema(options: argparse.Namespace) -> int:
    print(schema_sql(options.schema), end="")
    return 0


def _set_up(options: argparse.Namespace) -> int:
    with DurableSaver.from_conn_string(options.database, schema=options.schema) as saver:
        saver.setup(verify_only=options.verify_only)
    print(f"schema {options.schema!r} is current")
    return 0
