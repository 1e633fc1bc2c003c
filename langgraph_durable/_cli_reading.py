"""`python -m langgraph_durable interrupts` and `timeline`: who waits for an answer, and what happened in a thread."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

from langgraph_durable.interrupts import PendingInterrupt, pending_interrupts
from langgraph_durable.saver import DurableSaver
from langgraph_durable.timeline import TimelineEntry


def add_reading_commands(commands: Any, add_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to a parser's; `add_options` adds those that say which database."""
    interrupts = commands.add_parser(
        "interrupts", help="which threads wait for a human, and with what question"
    )
    add_options(interrupts)
    interrupts.add_argument("--thread", help="only this thread's")
    interrupts.add_argument("--json", action="store_true", help="one JSON object a line")
    interrupts.set_defaults(run=_interrupts)

    timeline = commands.add_parser("timeline", help="what happened in a thread, in order")
    add_options(timeline)
    timeline.add_argument("thread", help="its id")
    timeline.add_argument("--json", action="store_true", help="one JSON object a line")
    timeline.set_defaults(run=_timeline)


def _open(options: argparse.Namespace) -> DurableSaver:
    return DurableSaver.from_conn_string(options.database, schema=options.schema)


def _interrupts(options: argparse.Namespace) -> int:
    with _open(options) as saver:
        found: Iterable[PendingInterrupt] = pending_interrupts(saver, thread_id=options.thread)
        if options.json:
            for waiting in found:
                told = {**asdict(waiting), "age": waiting.age.total_seconds()}
                print(json.dumps({**told, "asked_at": waiting.asked_at.isoformat()}, default=repr))
            return 0
        oldest_first = sorted(found, key=lambda waiting: waiting.asked_at)
    if not oldest_first:
        print("no thread waits for a human")
        return 0
    print(_row("THREAD", "AGE", "INTERRUPT", "EFFECT", "QUESTION"))
    for waiting in oldest_first:
        question = waiting.unreadable or waiting.question
        cells = (waiting.interrupt_id or "-", waiting.effect_id or "-", _short(question, 100))
        print(_row(_shown(waiting.thread_id), _age(waiting.age), *cells))
    print("\nanswer: graph.invoke(Command(resume={INTERRUPT: answer}), config of the thread)")
    return 0


def _timeline(options: argparse.Namespace) -> int:
    nothing = True
    with _open(options) as saver:
        for entry in saver.timeline(options.thread):
            nothing = False
            print(json.dumps(asdict(entry)) if options.json else _line(entry))
    if nothing and not options.json:
        print(f"nothing is known of thread {options.thread!r}")
    return 0


def _line(entry: TimelineEntry) -> str:
    at = datetime.fromtimestamp(entry.timestamp / 1000, timezone.utc)
    time = at.strftime("%Y-%m-%d %H:%M:%S.") + f"{entry.timestamp % 1000:03}"
    within = f"  [{_shown(entry.checkpoint_ns)}]" if entry.checkpoint_ns else ""
    return (
        f"{time}  {entry.phase.replace('_', ' '):<14}  {_told(entry.phase, entry.payload)}{within}".rstrip()
    )


def _told(phase: str, payload: Mapping[str, Any]) -> str:
    if "unreadable" in payload:
        return _shown(payload["unreadable"])
    if phase == "model_answered":
        calls = [f"{call['name']}({_short(call['args'], 60)})" for call in payload["tool_calls"]]
        return _shown(
            " ".join([_short(payload["content"], 80) if payload["content"] else "", *calls]).strip()
        )
    if phase in ("tool_answered", "replayed"):
        return _shown(f"{payload['tool']}: {_short(payload['content'], 80)}")
    if phase.startswith("tool_"):
        why = f": {payload['reason']}" if payload["reason"] else ""
        begun = f"({_short(payload['args'], 60)})" if "args" in payload else f" {payload['to']}"
        return _shown(
            f"{payload['tool']}{begun}, attempt {payload['attempt']} by {payload['actor'] or '-'}{why}"
        )
    if phase == "interrupted":
        return _short(payload["question"], 100)
    if phase == "resumed":
        return _short(payload.get("answer", payload.get("answers")), 100)
    if phase == "task_failed":
        return _shown(f"{payload['node'] or payload['task']}: {payload['error']}")
    return _short(payload["step"], 20)


def _row(*cells: str) -> str:
    widths = (20, 5, 32, 26, 0)
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _short(value: Any, length: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    return _shown(text if len(text) <= length else text[: length - 1] + "…")


def _shown(text: str) -> str:
    """Return a text as one line of a terminal, whatever somebody stored in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
