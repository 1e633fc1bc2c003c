"""`interrupts` and `timeline`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

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
from langgraph_durable.interrupts import PendingInterrupt
from langgraph_durable.timeline import Phase, TimelineEntry, TimelinePayload

_WIDTHS = (20, 5, 32, 26, 0)


def add_inspect_commands(commands: Any) -> None:
    """Add the commands to a parser's subparsers."""
    interrupts = add_command(
        commands, "interrupts", "list the threads that wait for a human, with their questions"
    )
    add_database_options(interrupts)
    interrupts.add_argument("--thread", help="only this thread")
    interrupts.add_argument("--json", action="store_true", help="one JSON object per line")
    interrupts.set_defaults(run=_interrupts)

    timeline = add_command(commands, "timeline", "show what happened in a thread, in order")
    add_database_options(timeline)
    timeline.add_argument("thread", help="its id")
    timeline.add_argument("--json", action="store_true", help="one JSON object per line")
    timeline.set_defaults(run=_timeline)


def _interrupts(options: argparse.Namespace) -> int:
    with open_saver(options) as saver:
        found: Iterable[PendingInterrupt] = saver.pending_interrupts(thread_id=options.thread)
        if options.json:
            for waiting in found:
                stored = {
                    "question": plain(waiting.question),
                    "response_schema": plain(waiting.response_schema),
                }
                when = {"age": waiting.age.total_seconds(), "asked_at": waiting.asked_at.isoformat()}
                print(json.dumps({**asdict(waiting), **stored, **when}))
            return 0
        oldest_first = sorted(found, key=lambda waiting: waiting.asked_at)
    if not oldest_first:
        print("no thread waits for a human")
        return 0
    print(row(_WIDTHS, "THREAD", "AGE", "INTERRUPT", "EFFECT", "QUESTION"))
    for waiting in oldest_first:
        question = waiting.unreadable or waiting.question
        cells = (waiting.interrupt_id or "-", waiting.effect_id or "-", short(question, 100))
        print(row(_WIDTHS, escape_unprintable(waiting.thread_id), format_age(waiting.age), *cells))
    print("\nanswer: graph.invoke(Command(resume={INTERRUPT: answer}), config)")
    return 0


def _timeline(options: argparse.Namespace) -> int:
    found = False
    with open_saver(options) as saver:
        for entry in saver.timeline(options.thread):
            found = True
            print(json.dumps(asdict(entry)) if options.json else _line(entry))
    if not found and not options.json:
        print(f"nothing is stored for thread {options.thread!r}")
    return 0


def _line(entry: TimelineEntry) -> str:
    at = datetime.fromtimestamp(entry.timestamp / 1000, timezone.utc)
    time = at.strftime("%Y-%m-%d %H:%M:%S.") + f"{entry.timestamp % 1000:03}"
    within = f"  [{escape_unprintable(entry.checkpoint_ns)}]" if entry.checkpoint_ns else ""
    return f"{time}  {entry.phase.replace('_', ' '):<14}  {_details(entry.phase, entry.payload)}{within}".rstrip()


def _details(phase: Phase, payload: TimelinePayload) -> str:
    if "unreadable" in payload:
        return escape_unprintable(payload["unreadable"])
    if phase == "model_answered":
        calls = [f"{call['name']}({short(call['args'], 60)})" for call in payload["tool_calls"]]
        return escape_unprintable(
            " ".join([short(payload["content"], 80) if payload["content"] else "", *calls]).strip()
        )
    if phase in ("tool_answered", "replayed"):
        return escape_unprintable(f"{payload['tool']}: {short(payload['content'], 80)}")
    if phase.startswith("tool_"):
        why = f": {payload['reason']}" if payload["reason"] else ""
        begun = f"({short(payload['args'], 60)})" if "args" in payload else f" {payload['to']}"
        return escape_unprintable(
            f"{payload['tool']}{begun}, attempt {payload['attempt']} by {payload['actor'] or '-'}{why}"
        )
    if phase == "interrupted":
        return short(payload["question"], 100)
    if phase == "resumed":
        return short(payload.get("answer", payload.get("answers")), 100)
    if phase == "task_failed":
        return escape_unprintable(f"{payload['node'] or payload['task']}: {payload['error']}")
    return short(payload["step"], 20)
