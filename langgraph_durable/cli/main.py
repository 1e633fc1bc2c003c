"""The entry point: parses the arguments and runs a command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

import psycopg

from langgraph_durable import __version__
from langgraph_durable.cli.effects import add_effects_commands
from langgraph_durable.cli.inspect import add_inspect_commands
from langgraph_durable.cli.maintenance import add_maintenance_commands
from langgraph_durable.cli.transfer import add_transfer_commands
from langgraph_durable.errors import DurableError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 after success, 1 after an error, which is printed on standard error, 2 for invalid arguments,
        130 after an interrupt from the keyboard.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # stored text may not fit the terminal's encoding
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (DurableError, psycopg.Error) as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails, too
        return 0
    except KeyboardInterrupt:  # each thread is pruned or imported in one transaction
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="langgraph-durable",
        description="Set up, prune, measure, import and inspect the checkpoints and effects of LangGraph threads.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_maintenance_commands(commands)
    add_effects_commands(commands)
    add_inspect_commands(commands)
    add_transfer_commands(commands)
    return parser
