"""Entries of a timeline, from the rows of a thread; pure functions, without waiting."""

from __future__ import annotations

import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import decode
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._effect_states import State, event_fault
from langgraph_durable._inspect.inbox import decode_interrupts
from langgraph_durable._plain_json import plain
from langgraph_durable._postgres.statement import Row
from langgraph_durable._postgres.times import time_fault, time_of
from langgraph_durable.errors import CheckpointCorruptedError
from langgraph_durable.timeline import Phase, TimelineEntry, TimelinePayload

_REMEMBERED = 10_000
"""The number of messages and questions remembered to detect duplicates."""
_PULLED = "~__pregel_pull, "
_BY_UPDATE = "~__interrupt__, "
_TRIGGERS = ("__start__", "__pregel_tasks", "branch:to:", "join:")
_CHECKPOINT_ROW = 0
_PHASE_BY_SOURCE: Mapping[str, Phase] = MappingProxyType(
    {"input": "run_started", "loop": "step", "update": "state_updated", "fork": "forked"}
)
_PHASE_BY_STATE: Mapping[State, Phase] = MappingProxyType(
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
"""The task id of the input of a graph."""


# --- rows ---


@dataclass(slots=True)
class Step:
    """A checkpoint with the writes of its tasks."""

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
    """Why its time cannot be read; `at` is then the time in its ULID."""

    @property
    def key(self) -> tuple[str, str]:
        """The namespace and id."""
        return self.checkpoint_ns, self.checkpoint_id


class Write(NamedTuple):
    """A write of a task."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    at: datetime
    value: tuple[str, bytes]
    fault: str | None
    """Why its time cannot be read; `at` is then its checkpoint's time."""

    @property
    def node(self) -> str | None:
        """The node of the task; None for tasks made by Send, whose path has only numbers."""
        return self.task_path.removeprefix(_PULLED) if self.task_path.startswith(_PULLED) else None


def assemble_steps(rows: Sequence[Row]) -> list[Step]:
    """Assemble the rows of LIST_STEPS, in the order of the thread."""
    steps: dict[tuple[str, str], Step] = {}
    for kind, ns, id_, first, second, third, ulid, at, type_, value, type2, value2, idx in rows:
        if kind == _CHECKPOINT_ROW:
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


# --- entries ---


class Candidate(NamedTuple):
    """An entry, with what identifies its duplicates."""

    entry: TimelineEntry
    identity: str | None = None
    """The id of the message or question."""
    content: str | None = None
    """The content of the message, for messages that had no id yet."""


class _Found(NamedTuple):
    """What an entry will say, before it has a place and a time."""

    phase: Phase
    payload: TimelinePayload
    identity: str | None = None
    content: str | None = None


class EntryReader:
    """Turns the rows of one thread into entries."""

    def __init__(self, serde: SerializerProtocol, thread_id: str) -> None:
        self._serde = serde
        self._thread_id = thread_id
        # Subgraphs pass messages and questions up to the graphs around them, and nodes may return old messages.
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._without_id: Counter[str] = Counter()

    def deduplicate(self, candidate: Candidate) -> list[TimelineEntry]:
        """Return the entry, or nothing if an inner graph or an earlier node wrote the same."""
        identity, content = candidate.identity, candidate.content
        if identity is None:
            if content is not None:
                self._without_id[content] += 1
            return [candidate.entry]
        is_known = identity in self._seen
        self._remember(identity)
        if not is_known and content is not None and self._without_id[content]:
            # A message gets its id when it is added to the state: this step had it without one.
            self._without_id[content] -= 1
            is_known = True
        return [] if is_known else [candidate.entry]

    def _remember(self, identity: str) -> None:
        self._seen[identity] = None
        self._seen.move_to_end(identity)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    # --- checkpoints ---

    def read_step(self, step: Step) -> list[TimelineEntry]:
        """Return the entries of a checkpoint itself: its phase, and the end of the run."""
        if not step.checkpoint_ns:
            self._without_id.clear()
        where = f"checkpoint {step.checkpoint_id!r} of thread {self._thread_id!r}, namespace {step.checkpoint_ns!r}"
        entries = self._read_contents(step, where)
        if step.fault is not None:
            fault = f"cannot read {where}: {step.fault}"
            entries.append(self._entry(step, "unreadable", step.at, {"unreadable": fault}))
        return entries

    def _read_contents(self, step: Step, where: str) -> list[TimelineEntry]:
        try:
            metadata = decode(self._serde, step.metadata, f"the metadata of {where}")
        except CheckpointCorruptedError as exc:
            return [self._entry(step, "unreadable", step.at, {"unreadable": str(exc)})]
        source, number = (metadata.get(k) if isinstance(metadata, dict) else None for k in ("source", "step"))
        payload: TimelinePayload = {"step": plain(number), "source": plain(source)}
        phase: Phase = _PHASE_BY_SOURCE.get(source, "step") if isinstance(source, str) else "step"
        if phase == "run_started" and step.checkpoint_ns:
            phase = "step"  # the run of the calling graph
        entries = [self._entry(step, phase, step.at, payload)]
        if source == "loop" and not step.checkpoint_ns:
            try:
                checkpoint = decode(self._serde, step.checkpoint, where)
            except CheckpointCorruptedError as exc:
                return [*entries, self._entry(step, "unreadable", step.at, {"unreadable": str(exc)})]
            if _is_end(checkpoint):
                entries.append(self._entry(step, "ended", step.at, payload))
        return entries

    # --- writes ---

    def read_write(self, step: Step, write: Write) -> list[Candidate]:
        """Return the messages, questions, answers and errors of a write; other state has no entry."""
        what = (
            f"a write of task {write.task_id!r} to {write.channel!r}, thread {self._thread_id!r}, namespace "
            f"{step.checkpoint_ns!r}, checkpoint {step.checkpoint_id!r}"
        )
        by: TimelinePayload = {"task": write.task_id, "node": write.node}
        found: list[_Found] = []
        try:
            value = decode(self._serde, write.value, what)
            found += self._read_value(write, value, by, what)
        except CheckpointCorruptedError as exc:
            found = [_Found("unreadable", {**by, "unreadable": str(exc)})]
        if write.fault is not None:
            found.append(_Found("unreadable", {**by, "unreadable": f"cannot read {what}: {write.fault}"}))
        return [
            Candidate(self._entry(step, one.phase, write.at, one.payload), one.identity, one.content)
            for one in found
        ]

    def _read_value(self, write: Write, value: Any, by: TimelinePayload, what: str) -> Iterator[_Found]:
        if write.channel == "__interrupt__":
            for asked in decode_interrupts(value, what):
                question: TimelinePayload = {
                    **by,
                    "interrupt_id": asked.id,
                    "question": plain(asked.value),
                }
                yield _Found("interrupted", question, asked.id)
        elif write.channel == "__resume__":
            is_input = write.task_id == _INPUT
            answer: TimelinePayload = (
                {"answer": plain(value)} if is_input else {**by, "answers": plain(value)}
            )
            yield _Found("resumed", answer)
        elif write.channel == "__error__":
            error = value if isinstance(value, str) else repr(value)
            yield _Found("task_failed", {**by, "error": plain(error)})
        elif not write.channel.startswith(("__pregel_", "branch:to:")):
            # Inputs and updates by hand are not answers. LangGraph gives an update its own task.
            is_input = write.node == "__start__" or write.task_path.startswith(_BY_UPDATE)
            for message in _messages(value):
                if not is_input:
                    yield from _read_message(message, by)
                elif message.id is not None:
                    self._remember(message.id)

    # --- effects ---

    def read_event(self, row: Row) -> TimelineEntry:
        """Return the entry of an event in the effect log."""
        at, number, before, after, attempt, actor, reason, id_, tool, call_id, ns, checkpoint_id, run_id = (
            row[:13]
        )
        effect_id = format_ulid(id_)
        fault = event_fault(effect_id, number, at, before, after)
        phase: Phase
        if fault is not None:
            phase = "unreadable"
        elif before == after and reason is not None and reason.startswith("refused:"):
            phase = "tool_refused"
        elif before == after and reason is not None and reason.startswith("acknowledged"):
            phase = "tool_acknowledged"
        elif (before, after) == ("claimed", "issued"):
            phase = "tool_issued"
        else:
            phase = _PHASE_BY_STATE[after]
        payload: TimelinePayload = {
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
                args = decode(self._serde, (row[13], row[14]), f"the arguments of effect {effect_id}")
                payload["args"] = plain(args)
            except CheckpointCorruptedError as exc:
                payload["unreadable"] = str(exc)
        graph = ns.rpartition("|")[0] if ns is not None else None
        return TimelineEntry(self._thread_id, graph, checkpoint_id, run_id, phase, _milliseconds(at), payload)

    def _entry(self, step: Step, phase: Phase, at: datetime, payload: TimelinePayload) -> TimelineEntry:
        return TimelineEntry(
            self._thread_id,
            step.checkpoint_ns,
            step.checkpoint_id,
            step.run_id,
            phase,
            _milliseconds(at),
            payload,
        )


def _messages(value: Any) -> Iterator[BaseMessage]:
    values = value.values() if isinstance(value, dict) else [value]
    for item in values:
        for inner in item if isinstance(item, (list, tuple)) else [item]:
            if isinstance(inner, BaseMessage):
                yield inner


def _read_message(message: BaseMessage, by: TimelinePayload) -> Iterator[_Found]:
    said: TimelinePayload = {**by, "message_id": message.id, "content": plain(message.content)}
    content = json.dumps([message.type, said["content"], plain(getattr(message, "tool_calls", None))])
    if isinstance(message, AIMessage):
        said["tool_calls"] = [
            {"id": c["id"], "name": c["name"], "args": plain(c["args"])} for c in message.tool_calls
        ]
        yield _Found("model_answered", said, message.id, content)
    elif isinstance(message, ToolMessage):
        said["tool"] = message.name
        said["tool_call_id"] = message.tool_call_id
        said["status"] = message.status
        mark = message.response_metadata.get("effect")
        if isinstance(mark, dict) and mark.get("replayed"):
            said["effect"] = plain(mark)
            yield _Found("replayed", said, message.id, content)
        else:
            yield _Found("tool_answered", said, message.id, content)


def _is_end(checkpoint: Any) -> bool:
    """Return whether no task follows a checkpoint, by LangGraph's names for channels that trigger tasks."""
    if not isinstance(checkpoint, dict):
        return False
    updated = checkpoint.get("updated_channels")
    if updated is None or "__start__" not in checkpoint.get("channel_versions", ()):
        return False
    return not any(str(channel).startswith(_TRIGGERS) for channel in updated)


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)
