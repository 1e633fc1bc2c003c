"""Who waits for a human: the inbox that an approval page needs.

What waits is what LangGraph takes for it: the questions on the latest checkpoint of a thread's root graph, of tasks
that have not finished. An answer does not end the waiting, the task that takes it does: so a question is in the inbox
while the run that was given its answer goes on, and if that run dies; `graph.get_state` shows it just so.
(A graph that stops at `interrupt_before` or `interrupt_after` asks nothing, and is not in it.)
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable import _codec, _config
from langgraph_durable import _reading_statements as sql
from langgraph_durable._checkpoints import are_texts
from langgraph_durable._database import Database, run_now
from langgraph_durable._metrics import measured
from langgraph_durable._sessions import Row
from langgraph_durable._times import time_fault
from langgraph_durable._ulids import parse_ulid, show_ulid
from langgraph_durable.errors import CheckpointCorrupted

if TYPE_CHECKING:
    from langgraph_durable.saver import DurableSaver

_PAGE = 100
"""Threads that are fetched at once."""


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """A question that a thread waits with: resume it by `Command(resume={interrupt_id: answer})`."""

    thread_id: str
    checkpoint_ns: str
    """Of the innermost graph with checkpoints that asked; empty for the root graph."""
    checkpoint_id: str
    """The checkpoint, in that namespace, whose task asked."""
    interrupt_id: str | None
    """None if the question cannot be read. (When it was asked may be what cannot.)"""
    question: Any
    """What `interrupt()` was called with."""
    response_schema: Any
    """The JSON schema of the answer, if the graph gave one."""
    asked_at: datetime
    """When the question was stored, by the server's clock; with durability "exit", that is when the run ended.

    If that cannot be read, when its checkpoint was.
    """
    age: timedelta
    """How long ago that was, by the server's clock."""
    effect_id: str | None
    """The effect that the effect log asks about, if it is the log that asks."""
    unreadable: str | None = None
    """What of it cannot be read, and why: damaged, or written with another serializer or key than this saver's."""


def pending_interrupts(
    saver: DurableSaver, *, thread_id: str | None = None, after: str = "", limit: int | None = None
) -> Iterator[PendingInterrupt]:
    """Iterate over what threads wait for a human with, by thread; fetched in pages, each by one query.

    No connection is held between pages.

    Args:
        saver: Whose threads; or a proxy in front of it.
        thread_id: Only this thread's.
        after: Go on after this thread: for a page, the last one's of the page before.
        limit: At most this many threads, each with all its questions.

    Raises:
        InvalidConfig: An argument cannot be used.

    Round trips: 1 for each 100 threads that wait, 1 more if a question of theirs names an effect.
    """
    inbox = _Inbox(saver, thread_id, after, limit)
    return inbox.iterate(inbox.saver._db)


def apending_interrupts(
    saver: DurableSaver, *, thread_id: str | None = None, after: str = "", limit: int | None = None
) -> AsyncIterator[PendingInterrupt]:
    """Iterate over what threads wait for a human with; see `pending_interrupts`."""
    inbox = _Inbox(saver, thread_id, after, limit)
    return inbox.aiterate(inbox.saver._adb)


class _Inbox:
    """One walk through the threads that wait, once."""

    def __init__(self, saver: DurableSaver, thread_id: str | None, after: str, limit: int | None) -> None:
        from langgraph_durable.saver import require_saver

        self.saver = saver = require_saver(saver, "pending_interrupts")
        self._serde = saver.serde
        self._metrics = saver._metrics
        self._statement = sql.LIST_WAITING if thread_id is None else sql.LIST_WAITING_IN_THREAD
        self._thread_id = _config.require_thread_id(thread_id) if thread_id is not None else None
        self._after = _config.require_text(after, "after")
        self._left = _config.require_limit(limit)
        self._ended = False

    def iterate(self, db: Database) -> Iterator[PendingInterrupt]:
        while page := run_now(self._next_page(db)):
            yield from page

    async def aiterate(self, db: Database) -> AsyncIterator[PendingInterrupt]:
        while page := await self._next_page(db):
            for found in page:
                yield found

    async def _next_page(self, db: Database) -> list[PendingInterrupt]:
        size = _PAGE if self._left is None else min(_PAGE, self._left)
        if self._ended or size == 0:
            return []
        return await self._fetch(db, size)

    @measured("pending_interrupts")
    async def _fetch(self, db: Database, size: int) -> list[PendingInterrupt]:
        params = {"after": self._after, "size": size, "thread_id": self._thread_id}
        rows = sorted(await db.fetch(self._statement, params), key=_place)
        threads = [_Questions(self._serde, list(of_thread)) for _, of_thread in groupby(rows, lambda r: r[0])]
        self._ended = len(threads) < size
        if threads:
            self._after = threads[-1].thread_id
        if self._left is not None:
            self._left -= len(threads)
        named = [effect_id for questions in threads for effect_id in questions.effects_named()]
        asked: dict[Any, list[Any]] = dict(await db.fetch(sql.LIST_ASKED, (named,))) if named else {}
        return [found for questions in threads for found in questions.told(asked)]


def _place(row: Row) -> Any:
    thread_id, checkpoint_ns, _, task_path, task_id, idx = row[:6]
    return thread_id, checkpoint_ns.count("|"), checkpoint_ns, writes_sort_key(task_path, task_id, idx)


class _Questions:
    """What one thread waits with: each question once, from wherever it is stored."""

    def __init__(self, serde: SerializerProtocol, rows: Sequence[Row]) -> None:
        self.thread_id: str = rows[0][0]
        self._found: dict[Any, PendingInterrupt] = {}
        self._tasks: dict[Any, set[str]] = {}
        for row in rows:
            for found in _decode(serde, row):
                self._add(found, task_id=row[4])

    def _add(self, found: PendingInterrupt, task_id: str) -> None:
        key = found.interrupt_id or (task_id, found.checkpoint_id)
        if key in self._found:  # deeper: a subgraph's question hangs on every checkpoint above it
            self._found[key] = replace(
                self._found[key],
                checkpoint_ns=found.checkpoint_ns,
                checkpoint_id=found.checkpoint_id,
                asked_at=found.asked_at,
                age=found.age,
                unreadable=self._found[key].unreadable or found.unreadable,
            )
        elif not found.checkpoint_ns:
            self._found[key] = found
        self._tasks.setdefault(key, set()).add(task_id)

    def effects_named(self) -> list[Any]:
        named = [_effect_named(found.question) for found in self._found.values()]
        return [effect_id for effect_id in named if effect_id is not None]

    def told(self, asked: Mapping[Any, Sequence[Any]]) -> Iterator[PendingInterrupt]:
        """Yield the questions; those that the effect log has asked, with the effect."""
        for key, found in self._found.items():
            effect_id = _effect_named(found.question)
            if effect_id is not None and not are_texts(asked.get(effect_id, ())):
                fault = f"cannot read effect {show_ulid(effect_id)}, which it names: asked: no list of texts"
                yield replace(found, unreadable=found.unreadable or fault)
                continue
            # The log remembers each question as task/fence: see effects/_questions.py.
            tasks = {question.split("/")[0] for question in asked.get(effect_id, ())}
            if effect_id is not None and not tasks.isdisjoint(self._tasks[key]):
                yield replace(found, effect_id=show_ulid(effect_id))
            else:
                yield found


def _effect_named(question: Any) -> uuid.UUID | None:
    named = question.get("effect") if isinstance(question, dict) else None
    return parse_ulid(named) if isinstance(named, str) else None


def _decode(serde: SerializerProtocol, row: Row) -> Iterator[PendingInterrupt]:
    """Yield the questions of one task; if they cannot be read, one that says so."""
    thread_id, checkpoint_ns, checkpoint_id, _, task_id, _, kind, value, stored_at, created_at, now = row
    what = (
        f"the question of task {task_id!r} of thread {thread_id!r}, namespace {checkpoint_ns!r}, "
        f"checkpoint {checkpoint_id!r}"
    )
    # Questions from before writes had times have their checkpoint's, and so have those whose time is damaged.
    fault = time_fault(stored_at=stored_at) if stored_at is not None else time_fault(created_at=created_at)
    asked_at = stored_at if stored_at is not None and fault is None else created_at
    if fault is not None:
        fault = f"cannot read when {what} was stored: {fault}"

    def told(
        interrupt_id: str | None, question: Any, schema: Any, unreadable: str | None
    ) -> PendingInterrupt:
        return PendingInterrupt(
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            checkpoint_id=checkpoint_id,
            interrupt_id=interrupt_id,
            question=question,
            response_schema=schema,
            asked_at=asked_at,
            age=now - asked_at,
            effect_id=None,
            unreadable=unreadable,
        )

    try:
        for found in read_interrupts(_codec.decode(serde, (kind, value), what), what):
            yield told(found.id, found.value, getattr(found, "response_schema", None), fault)
    except CheckpointCorrupted as exc:
        yield told(None, None, None, str(exc))


def read_interrupts(stored: Any, what: str) -> list[Any]:
    """Return the interrupts of a write to LangGraph's channel for them, which holds one or several.

    Raises:
        CheckpointCorrupted: It holds something else; the message names `what` it is.
    """
    found = list(stored) if isinstance(stored, (list, tuple)) else [stored]
    if not all(isinstance(getattr(i, "id", None), str) and hasattr(i, "value") for i in found):
        raise CheckpointCorrupted(f"cannot read {what}: it holds {stored!r:.200}, which is no interrupt")
    return found
