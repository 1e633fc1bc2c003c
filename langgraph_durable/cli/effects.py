"""`effects list`, `show`, `resolve` and `acknowledge`: for the person who decides."""

from __future__ import annotations

import argparse
import getpass
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, get_args

from langgraph_durable._plain_json import plain
from langgraph_durable.cli.output import (
    add_command,
    add_database_options,
    escape_unprintable,
    format_age,
    open_saver,
    row,
    short,
)
from langgraph_durable.effects import DecisionWord, EffectRecord, Happened
from langgraph_durable.errors import EffectError

_STATES = ("claimed", "issued", "suspended", "completed", "failed", "unknown", "abandoned")
_DECISIONS: tuple[DecisionWord, ...] = get_args(DecisionWord)
_WIDTHS = (26, 9, 5, 5, 16, 20, 0)


def add_effects_commands(commands: Any) -> None:
    """Add the commands to a parser's subparsers."""
    effects = add_command(commands, "effects", "list, show and decide on the effects of tools")
    actions = effects.add_subparsers(title="commands", required=True, metavar="COMMAND")

    list_ = add_command(actions, "list", "list effects; by default only those that need a decision")
    add_database_options(list_)
    list_.add_argument("--all", action="store_true", help="list all effects")
    list_.add_argument("--state", choices=_STATES, help="only effects in this state")
    list_.add_argument("--tool", help="only effects of this tool")
    list_.add_argument("--thread", help="only effects of this thread")
    list_.add_argument("--json", action="store_true", help="one JSON object per line")
    list_.set_defaults(run=_list)

    show = add_command(actions, "show", "show an effect and its history")
    add_database_options(show)
    show.add_argument("effect", help="its id")
    show.add_argument("--json", action="store_true", help="as a JSON object")
    show.set_defaults(run=_show)

    resolve = add_command(actions, "resolve", "decide on an effect; then run its graph again")
    add_database_options(resolve)
    resolve.add_argument("effect", help="its id")
    resolve.add_argument(
        "decision",
        type=lambda word: word.replace("-", "_"),
        choices=_DECISIONS,
        help="happened: it took place; not_happened or retry: it did not, and is tried again; failed: it did not, and "
        "the waiting task does not try it again; abandon: it can never be known, and it never runs again",
    )
    resolve.add_argument("--result", metavar="JSON", help="the result of the tool, if it happened")
    resolve.add_argument("--note", help="the reason, for the history")
    resolve.add_argument("--actor", help="the person who decides, for the history (default: the user's name)")
    resolve.add_argument(
        "--force",
        action="store_true",
        help="also if its owner still renews its lease, as one that hangs does",
    )
    resolve.set_defaults(run=_resolve)

    acknowledge = add_command(actions, "acknowledge", "say that an effect is dealt with")
    add_database_options(acknowledge)
    acknowledge.add_argument("effect", help="its id")
    acknowledge.add_argument("--note", help="the reason, for the history")
    acknowledge.add_argument("--actor", help="who says so, for the history (default: the user's name)")
    acknowledge.set_defaults(run=_acknowledge)


def _list(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        log = saver.effects
        if options.all or options.state:
            found: Sequence[EffectRecord] = list(
                log.list(state=options.state, tool=options.tool, thread_id=options.thread)
            )
        else:
            found = [e for e in log.pending(options.thread) if options.tool in (None, e.tool)]
    if options.json:
        for record in found:
            print(json.dumps(_plain_record(record), default=str))
        return 0
    if not found:
        print("no effect needs a decision" if not (options.all or options.state) else "no effects")
        return 0
    print(row(_WIDTHS, "EFFECT", "STATE", "AGE", "TRIES", "TOOL", "THREAD", "ARGUMENTS"))
    now = datetime.now(timezone.utc)
    for record in found:
        print(
            row(
                _WIDTHS,
                record.effect_id,
                record.state,
                format_age(now - record.first_attempt_at),
                str(record.attempts),
                escape_unprintable(record.tool),
                escape_unprintable(record.thread_id or "-"),
                short(record.unreadable or record.args, 100 if record.unreadable else 60),
            )
        )
    if any(record.state in ("unknown", "issued") for record in found):
        print(
            f"\ndecide: langgraph-durable effects resolve EFFECT {'|'.join(_DECISIONS)} "
            "[--result JSON] [--note WHY]"
        )
    return 0


def _show(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        log = saver.effects
        record = log.get(options.effect)
        if record is None:
            raise EffectError(
                f"there is no effect {options.effect!r}: `langgraph-durable effects list --all` lists them"
            )
        history = log.history(options.effect)
    if options.json:
        print(json.dumps({**_plain_record(record), "history": [asdict(e) for e in history]}, default=str))
        return 0
    for name, value in asdict(record).items():
        if value is not None:
            print(f"{name.replace('_', ' '):<17} {escape_unprintable(str(value))}")
    print("history")
    for event in history:
        moved = f"{event.from_state or '-'} -> {event.to_state}"
        why = f": {event.reason}" if event.reason else ""
        by = escape_unprintable(f"{event.actor or '-'}{why}") + (
            f"  ({escape_unprintable(event.unreadable)})" if event.unreadable else ""
        )
        print(f"  {event.at.isoformat(timespec='milliseconds')}  {moved:<22} {by}")
    return 0


def _resolve(options: argparse.Namespace) -> int:
    if options.result is not None and options.decision != "happened":
        raise EffectError(
            f"--result goes with the decision happened, not with {options.decision}: leave it out"
        )
    try:
        result = json.loads(options.result) if options.result is not None else None
    except ValueError as exc:
        raise EffectError(f"--result is not JSON ({exc}): quote text, as in --result '\"sent\"'") from exc
    decision = Happened(result) if options.decision == "happened" else options.decision
    with open_saver(options) as saver:
        record = saver.effects.resolve(
            options.effect,
            decision,
            note=options.note,
            actor=options.actor or _user(),
            force=options.force,
        )
    print(f"effect {record.effect_id} is {record.state}. Run the graph again: graph.invoke(None, config)")
    return 0


def _acknowledge(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        record = saver.effects.acknowledge(options.effect, note=options.note, actor=options.actor or _user())
    print(f"effect {record.effect_id} is acknowledged. An equal call after it is a new effect")
    return 0


def _plain_record(record: EffectRecord) -> dict[str, Any]:
    return {**asdict(record), "args": plain(record.args)}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no account, as in some containers
        return f"uid {os.getuid()}"
