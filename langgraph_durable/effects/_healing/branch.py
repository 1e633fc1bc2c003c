"""The checkpoints that lead to a task, and the answers to tool calls in those of their steps that were abandoned.

A step that is abandoned leaves its finished tasks' writes beside its checkpoint. LangGraph never reads them again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec, decode
from langgraph_durable._checkpoints.decoding import decode_checkpoint
from langgraph_durable._checkpoints.read import get_checkpoint
from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._context import SaverContext
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import Row
from langgraph_durable.effects._healing.answers import messages_in
from langgraph_durable.effects._healing.conversation import RequestedCall, is_placeholder
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._storage import statements as sql

_BARRIER_TIMEOUT = 2.0
_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.1


@dataclass(slots=True, eq=False)
class AbandonedTask:
    """What a task of an abandoned step wrote: channel and value of each write, in order."""

    checkpoint_ns: str
    checkpoint_id: str
    writes: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages among its writes."""
        return [message for _, value in self.writes for message in messages_in(value)]

    @property
    def other_writes(self) -> list[tuple[str, Any]]:
        """The writes that are not messages."""
        return [(c, v) for c, v in self.writes if not messages_in(v) and not c.startswith("__")]

    def answer_to(self, call: RequestedCall) -> ToolMessage | None:
        """Return the message that answers a call, if this task wrote one."""
        for message in self.messages:
            if isinstance(message, ToolMessage) and message.tool_call_id == call.tool_call_id:
                return None if is_placeholder(message) else message
        return None


@dataclass(frozen=True, slots=True)
class Branch:
    """The checkpoints that lead to one.

    Attributes:
        sources: Namespace and id of each checkpoint -> the source of the next one on this branch; None if there is
            none, or it is not known.
        tasks: The tasks of abandoned steps that wrote something, in the order in which LangGraph applies writes.
    """

    sources: Mapping[tuple[str, str], str | None]
    tasks: Sequence[AbandonedTask]


async def read_branch(
    db: Database,
    serde: SerializerProtocol,
    thread_id: str,
    checkpoints: Mapping[str, str | None],
    *,
    is_running: bool,
) -> Branch:
    """Read the checkpoints that lead to some, and the writes of abandoned steps.

    Args:
        db: Where.
        serde: The saver's serializer.
        thread_id: The thread.
        checkpoints: Namespace -> id of the last checkpoint; None for the latest.
        is_running: Whether these checkpoints' own steps are running, so that they were not abandoned.

    Raises:
        CheckpointCorruptedError: A write cannot be read.

    Round trips: 1.
    """
    rows = await db.fetch(
        sql.LIST_BRANCH_WRITES,
        {
            "thread_id": thread_id,
            "namespaces": list(checkpoints),
            "checkpoint_ids": list(checkpoints.values()),
            "is_running": is_running,
        },
    )
    sources: dict[tuple[str, str], str | None] = {}
    written: list[Row] = []
    for row in rows:
        sources[row[0], row[1]] = row[2]
        if row[3] is not None:
            written.append(row)
    written.sort(key=lambda row: writes_sort_key(row[4], row[3], row[5]))
    tasks: dict[tuple[str, str, str], AbandonedTask] = {}
    for ns, checkpoint_id, _, task_id, _, _, channel, kind, data in written:
        task = tasks.setdefault((ns, checkpoint_id, task_id), AbandonedTask(ns, checkpoint_id))
        what = (
            f"a write of task {task_id!r} to {channel!r}, thread {thread_id!r}, checkpoint {checkpoint_id!r}"
        )
        task.writes.append((channel, decode(serde, (kind, data), what)))
    return Branch(sources, list(tasks.values()))


async def await_checkpoints(db: Database, context: SaverContext, place: Place) -> None:
    """Wait a moment for the checkpoints that lead to a task, which may be on their way to the database."""
    if place.durability == "exit":  # they are stored when the run ends
        return
    deadline, delay = time.monotonic() + _BARRIER_TIMEOUT, _FIRST_WAIT
    for ns, checkpoint_id in place.checkpoints.items():
        while (place.thread_id, ns, checkpoint_id) not in context.known and time.monotonic() < deadline:
            await db.sleep(delay)
            delay = min(delay * 2, _LONGEST_WAIT)


class AskedIn:
    """Finds out which message a task of an abandoned step answered, since providers use ids again."""

    def __init__(self, db: Database, codec: Codec, thread_id: str) -> None:
        self._db = db
        self._codec = codec
        self._thread_id = thread_id
        self._found: dict[tuple[str, str], list[AIMessage]] = {}

    async def message(self, task: AbandonedTask, tool_call_id: str) -> AIMessage | None:
        """Return the last message with a call of this id in the state that the task ran on; None if none is known.

        Round trips: 1 for each checkpoint; 1 more if segments are not cached.
        """
        where = (task.checkpoint_ns, task.checkpoint_id)
        if where not in self._found:
            ref = CheckpointRef(self._thread_id, *where)
            stored = await get_checkpoint(self._db, ref, self._codec)
            values: Mapping[str, Any] = {}
            if stored is not None:
                values = decode_checkpoint(self._codec.serde, stored).checkpoint["channel_values"]
            self._found[where] = [
                message
                for value in values.values()
                for message in messages_in(value)
                if isinstance(message, AIMessage)
            ]
        for message in reversed(self._found[where]):
            if any(call["id"] == tool_call_id for call in (*message.tool_calls, *message.invalid_tool_calls)):
                return message
        return None
