"""`python -m langgraph_durable effects list|show|resolve`: for the person who decides."""

from __future__ import annotations

import argparse
import getpass
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from langgraph_durable._cli_common import add_command, open_saver, row, short, show_age, shown
from langgraph_durable._plain_json import plain
from langgraph_durable.effects import EffectLog, EffectRecord, Happened, NotHappened
from langgraph_durable.effects.policy import Finding
from langgraph_durable.errors import EffectError

_SEVERAL_STATES = ("claimed", "issued", "suspended", "completed", "failed", "unknown", "abandoned")
_WIDTHS = (26, 9, 5, 5, 16, 20, 0)


def add_effects_commands(commands: Any, add_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to a parser's; `add_options` adds those that say which database."""
    effects = add_command(commands, "effects", "what tools did, or may have done; decide on what is unknown")
    actions = effects.add_subparsers(title="commands", required=True, metavar="COMMAND")

    list_ = add_command(actions, "list", "list effects; those that need a decision, unless told otherwise")
    add_options(list_)
    list_.add_argument("--all", action="store_true", help="also those that need no decision")
    list_.add_argument("--state", choices=_SEVERAL_STATES, help="only those in this state")
    list_.add_argument("--tool", help="only those of this tool")
    list_.add_argument("--thread", help="only those of this thread")
    list_.add_argument("--json", action="store_true", help="one JSON object a line")
    list_.set_defaults(run=_list)

    show = add_command(actions, "show", "show an effect and its history")
    add_options(show)
    show.add_argument("effect", help="its id")
    show.add_argument("--json", action="store_true", help="as a JSON object")
    show.set_defaults(run=_show)

    resolve = add_command(actions, "resolve", "decide on an effect; then run its graph again")
    add_options(resolve)
    resolve.add_argument("effect", help="its id")
    resolve.add_argument(
        "decision",
        choices=["happened", "not-happened", "abandon"],
        help="it took place; it did not, and is tried again; or nobody will know, and it is given up",
    )
    resolve.add_argument("--result", metavar="JSON", help="what the tool would have returned, if it happened")
    resolve.add_argument("--note", help="why, for the history")
    resolve.add_argument("--actor", help="who decides, for the history (default: the user's name)")
    resolve.set_defaults(run=_resolve)


def _list(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        log = EffectLog.from_saver(saver)
        if options.all or options.state:
            found: Sequence[EffectRecord] = log.list(
                state=options.state, tool=options.tool, thread_id=options.thread, limit=None
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
                show_age(now - record.first_attempt_at),
                str(record.attempts),
                shown(record.tool),
                shown(record.thread_id or "-"),
                short(record.unreadable or record.args, 100 if record.unreadable else 60),
            )
        )
    if any(record.state in ("unknown", "issued") for record in found):
        print(
            "\ndecide: python -m langgraph_durable effects resolve EFFECT happened|not-happened|abandon "
            "[--result JSON] [--note WHY]"
        )
    return 0


def _show(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        log = EffectLog.from_saver(saver)
        record = log.get(options.effect)
        if record is None:
            raise EffectError(f"there is no effect {options.effect!r}: `effects list --all` lists them")
        history = log.history(options.effect)
    if options.json:
        print(json.dumps({**_plain_record(record), "history": [asdict(e) for e in history]}, default=str))
        return 0
    for name, value in asdict(record).items():
        if value is not None:
            print(f"{name.replace('_', ' '):<17} {shown(str(value))}")
    print("history")
    for event in history:
        moved = f"{event.from_state or 'nothing'} -> {event.to_state}"
        why = f": {event.reason}" if event.reason else ""
        by = shown(f"{event.actor or '-'}{why}") + (
            f"  ({shown(event.unreadable)})" if event.unreadable else ""
        )
        print(f"  {event.at.isoformat(timespec='milliseconds')}  {moved:<22} {by}")
    return 0


def _resolve(options: argparse.Namespace) -> int:
    if options.result is not None and options.decision != "happened":
        raise EffectError("--result is for what happened: leave it out, or decide `happened`")
    try:
        result = json.loads(options.result) if options.result is not None else None
    except ValueError as exc:
        raise EffectError(f"--result is no JSON ({exc}): quote text, as in --result '\"sent\"'") from exc
    findings: dict[str, Finding | None] = {
        "happened": Happened(result),
        "not-happened": NotHappened(),
        "abandon": None,
    }
    with open_saver(options) as saver:
        record = EffectLog.from_saver(saver).resolve(
            options.effect,
            findings[options.decision],
            note=options.note,
            actor=options.actor or _user(),
        )
    print(
        f"effect {record.effect_id} is {record.state}; run the graph again to go on: graph.invoke(None, config)"
    )
    return 0


def _plain_record(record: EffectRecord) -> dict[str, Any]:
    return {**asdict(record), "args": plain(record.args)}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, whose user may have no account
        return f"uid {os.getuid()}"
