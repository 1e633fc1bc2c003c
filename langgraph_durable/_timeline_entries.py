"""What is stored of a thread, turned into entries of its timeline: pure, without waiting."""

from __future__ import annotations

import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable import _codec
from langgraph_durable import _reading_statements as sql
from langgraph_durable._effect_records import event_fault
from langgraph_durable._plain_json import plain
from langgraph_durable._sessions import Row
from langgraph_durable._times import time_fault, time_of
from langgraph_durable._ulids import show_ulid
from langgraph_durable.errors import CheckpointCorrupted
from langgraph_durable.interrupts import read_interrupts
from langgraph_durable.timeline import Phase, TimelineEntry

_KNOWN = 10_000
"""How many messages and questions are remembered, so as to be told once."""
_PULLED = "~__pregel_pull, "
_BY_HAND = "~__interrupt__, "
_TRIGGERS = ("__start__", "__pregel_tasks", "branch:to:", "join:")
_BY_SOURCE: Mapping[str, Phase] = MappingProxyType(
    {"input": "run_started", "loop": "step", "update": "state_updated", "fork": "forked"}
)
_BY_STATE: Mapping[str, Phase] = MappingProxyType(
    {
        "claimed": "tool_begun",
        "issued": "tool_begun",
        "suspended": "tool_suspended",
        "completed": "tool_ended",
        "failed": "tool_ended",
        "abandoned": "tool_ended",
        "unknown": "tool_unknown",
    }
)
_INPUT = "00000000-0000-0000-0000-000000000000"
"""In place of a task's id: what came from whoever called the graph."""


@dataclass(slots=True)
class Step:
    """A checkpoint with what its tasks wrote."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    ulid: uuid.UUID
    at: datetime
    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    writes: list[Write] = field(default_factory=list)
    fault: str | None = None
    """Why it is not known when it was stored; `at` is then what its ULID tells."""

    @property
    def key(self) -> tuple[str, str]:
        return self.checkpoint_ns, self.checkpoint_id


class Write(NamedTuple):
    task_path: str
    task_id: str
    idx: int
    channel: str
    at: datetime
    value: tuple[str, bytes]
    fault: str | None
    """Why it is not known when it was stored; `at` is then its checkpoint's time."""

    @property
    def node(self) -> str | None:
        """The node that wrote it, where the path tells: what was sent has only numbers."""
        return self.task_path.removeprefix(_PULLED) if self.task_path.startswith(_PULLED) else None


class Told(NamedTuple):
    """An entry, and what makes it the same as another that says it again."""

    entry: TimelineEntry
    identity: str | None = None
    content: str | None = None


_Found: TypeAlias = tuple[Phase, dict[str, Any], "str | None", "str | None"]
"""What a write tells: phase, payload, identity, content."""


def assemble_steps(rows: Sequence[Row]) -> list[Step]:
    """Put the rows of a page together, in the order of the thread."""
    steps: dict[tuple[str, str], Step] = {}
    for kind, ns, id_, first, second, third, ulid, at, type_, value, type2, value2, idx in rows:
        if kind == sql.STEP:
            fault = time_fault(created_at=at)
            steps[ns, id_] = Step(
                ns,
                id_,
                first,
                second,
                ulid,
                at if fault is None else time_of(ulid),
                (type_, value),
                (type2, value2),
                fault=fault,
            )
        else:
            fault = time_fault(stored_at=at)
            step = steps[ns, id_]
            known = at if at is not None and fault is None else step.at
            step.writes.append(Write(first, second, idx, third, known, (type_, value), fault))
    for step in steps.values():
        step.writes.sort(key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))
    return sorted(steps.values(), key=lambda step: (step.ulid.int, step.checkpoint_ns))


class TimelineReader:
    """Turns what is stored into entries."""

    def __init__(self, serde: SerializerProtocol, thread_id: str) -> None:
        self._serde = serde
        self._thread_id = thread_id
        # Messages and questions go up from subgraphs to the graphs around, and nodes may return what was there.
        self._known: OrderedDict[str, None] = OrderedDict()
        self._nameless: Counter[str] = Counter()

    def tell_once(self, told: Told) -> list[TimelineEntry]:
        """Return an entry, unless the same was told before, from a graph inside or by a node earlier."""
        if told.identity is None:
            if told.content is not None:
                self._nameless[told.content] += 1
            return [told.entry]
        is_known = told.identity in self._known
        self._know(told.identity)
        if not is_known and told.content is not None and self._nameless[told.content]:
            # A message gets its id when it is added to the state: it was told in this step, without one.
            self._nameless[told.content] -= 1
            is_known = True
        return [] if is_known else [told.entry]

    def _know(self, identity: str) -> None:
        self._known[identity] = None
        self._known.move_to_end(identity)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    # --- checkpoints ---

    def step(self, step: Step) -> list[TimelineEntry]:
        """Tell of a checkpoint, and whether the run ended with it."""
        if not step.checkpoint_ns:
            self._nameless.clear()
        where = f"checkpoint {step.checkpoint_id!r} of thread {self._thread_id!r}, namespace {step.checkpoint_ns!r}"
        told = self._contents(step, where)
        if step.fault is not None:
            fault = f"cannot read {where}: {step.fault}"
            told.append(self._entry(step, "unreadable", step.at, {"unreadable": fault}))
        return told

    def _contents(self, step: Step, where: str) -> list[TimelineEntry]:
        try:
            metadata = _codec.decode(self._serde, step.metadata, f"the metadata of {where}")
        except CheckpointCorrupted as exc:
            return [self._entry(step, "unreadable", step.at, {"unreadable": str(exc)})]
        source, number = (metadata.get(k) if isinstance(metadata, dict) else None for k in ("source", "step"))
        payload = {"step": plain(number), "source": plain(source)}
        phase: Phase = _BY_SOURCE.get(source, "step") if isinstance(source, str) else "step"
        if phase == "run_started" and step.checkpoint_ns:
            phase = "step"  # of the run that called the subgraph
        told = [self._entry(step, phase, step.at, payload)]
        if source == "loop" and not step.checkpoint_ns:
            try:
                checkpoint = _codec.decode(self._serde, step.checkpoint, where)
            except CheckpointCorrupted as exc:
                return [*told, self._entry(step, "unreadable", step.at, {"unreadable": str(exc)})]
            if _is_end(checkpoint):
                told.append(self._entry(step, "ended", step.at, payload))
        return told

    # --- writes ---

    def write(self, step: Step, write: Write) -> list[Told]:
        """Tell of a write what people ask for: answers, questions, failures; not of plain state."""
        what = (
            f"a write of task {write.task_id!r} to {write.channel!r}, thread {self._thread_id!r}, namespace "
            f"{step.checkpoint_ns!r}, checkpoint {step.checkpoint_id!r}"
        )
        by = {"task": write.task_id, "node": write.node}
        found: list[_Found] = []
        try:
            value = _codec.decode(self._serde, write.value, what)
            found += self._found_in(write, value, by, what)
        except CheckpointCorrupted as exc:
            found = [_unreadable(by, str(exc))]
        if write.fault is not None:
            found.append(_unreadable(by, f"cannot read {what}: {write.fault}"))
        return [
            Told(self._entry(step, phase, write.at, payload), identity, content)
            for phase, payload, identity, content in found
        ]

    def _found_in(self, write: Write, value: Any, by: dict[str, Any], what: str) -> Iterator[_Found]:
        if write.channel == "__interrupt__":
            for asked in read_interrupts(value, what):
                question = {**by, "interrupt_id": asked.id, "question": plain(asked.value)}
                yield "interrupted", question, asked.id, None
        elif write.channel == "__resume__":
            given = {"answer": plain(value)} if write.task_id == _INPUT else {**by, "answers": plain(value)}
            yield "resumed", given, None, None
        elif write.channel == "__error__":
            error = value if isinstance(value, str) else repr(value)
            yield "task_failed", {**by, "error": plain(error)}, None, None
        elif not write.channel.startswith(("__pregel_", "branch:to:")):
            # An input, or an update by hand, which LangGraph gives a task of its own.
            given_in = write.node == "__start__" or write.task_path.startswith(_BY_HAND)
            for message in _messages(value):
                if not given_in:
                    yield from _told_of(message, by)
                elif message.id is not None:
                    self._know(message.id)

    # --- effects ---

    def event(self, row: Row) -> TimelineEntry:
        """Tell of a step in the life of an effect."""
        at, number, before, after, attempt, actor, reason, id_, tool, call_id, ns, checkpoint_id, run_id = (
            row[:13]
        )
        effect_id = show_ulid(id_)
        fault = event_fault(effect_id, number, at, before, after)
        phase: Phase
        if fault is not None:
            phase = "unreadable"
        elif before == after and reason is not None and reason.startswith("refused:"):
            phase = "tool_refused"
        elif (before, after) == ("claimed", "issued"):
            phase = "tool_issued"
        else:
            phase = _BY_STATE[after]
        payload = {
            "tool": tool,
            "effect_id": effect_id,
            "tool_call_id": call_id,
            "attempt": attempt,
            "from": before,
            "to": after,
            "actor": actor,
            "reason": reason,
        }
        if fault is not None:
            payload["unreadable"] = fault
        if phase == "tool_begun" and row[13] is not None and row[14] is not None:
            try:
                args = _codec.decode(self._serde, (row[13], row[14]), f"the arguments of effect {effect_id}")
                payload["args"] = plain(args)
            except CheckpointCorrupted as exc:
                payload["unreadable"] = str(exc)
        graph = ns.rpartition("|")[0] if ns is not None else None
        return TimelineEntry(self._thread_id, graph, checkpoint_id, run_id, phase, _milliseconds(at), payload)

    def _entry(self, step: Step, phase: Phase, at: datetime, payload: dict[str, Any]) -> TimelineEntry:
        return TimelineEntry(
            self._thread_id,
            step.checkpoint_ns,
            step.checkpoint_id,
            step.run_id,
            phase,
            _milliseconds(at),
            payload,
        )


def _unreadable(by: dict[str, Any], why: str) -> _Found:
    return "unreadable", {**by, "unreadable": why}, None, None


def _messages(value: Any) -> Iterator[BaseMessage]:
    values = value.values() if isinstance(value, dict) else [value]
    for item in values:
        for inner in item if isinstance(item, (list, tuple)) else [item]:
            if isinstance(inner, BaseMessage):
                yield inner


def _told_of(message: BaseMessage, by: dict[str, Any]) -> Iterator[_Found]:
    said = {**by, "message_id": message.id, "content": plain(message.content)}
    content = json.dumps([message.type, said["content"], plain(getattr(message, "tool_calls", None))])
    if isinstance(message, AIMessage):
        calls = [{"id": c["id"], "name": c["name"], "args": plain(c["args"])} for c in message.tool_calls]
        yield "model_answered", {**said, "tool_calls": calls}, message.id, content
    elif isinstance(message, ToolMessage):
        told = {
            **said,
            "tool": message.name,
            "tool_call_id": message.tool_call_id,
            "status": message.status,
        }
        mark = message.response_metadata.get("effect")
        if isinstance(mark, dict) and mark.get("replayed"):
            yield "replayed", {**told, "effect": plain(mark)}, message.id, content
        else:
            yield "tool_answered", told, message.id, content


def _is_end(checkpoint: Any) -> bool:
    """Tell whether nothing comes after a checkpoint, where LangGraph's names for what starts a task tell.

    A task starts because a channel that triggers it was written in the step before.
    """
    if not isinstance(checkpoint, dict):
        return False
    updated = checkpoint.get("updated_channels")
    if updated is None or "__start__" not in checkpoint.get("channel_versions", ()):
        return False
    return not any(str(channel).startswith(_TRIGGERS) for channel in updated)


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)
