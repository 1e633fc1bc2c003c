"""Listing the threads that wait for a human, in pages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import decode
from langgraph_durable._checkpoints.read import are_texts
from langgraph_durable._checkpoints.ulids import format_ulid, parse_ulid
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.statement import Row, load
from langgraph_durable._postgres.times import time_fault
from langgraph_durable._validation import require_limit, require_text, require_thread_id
from langgraph_durable.errors import CheckpointCorruptedError
from langgraph_durable.interrupts import PendingInterrupt

LIST_WAITING = load(__package__, "list_waiting")
LIST_ASKED = load(__package__, "list_asked")

_PAGE = 100
"""Threads per page."""


class Inbox:
    """One iteration over the threads that wait for a human."""

    def __init__(
        self,
        serde: SerializerProtocol,
        metrics: Metrics,
        thread_id: str | None,
        after: str,
        limit: int | None,
    ) -> None:
        self._serde = serde
        self.metrics = metrics
        self._thread_id = require_thread_id(thread_id) if thread_id is not None else None
        self._after = require_text(after, "after")
        self._left = require_limit(limit)
        self._ended = False

    def iterate(self, db: Database) -> Iterator[PendingInterrupt]:
        """Yield the questions, over a BlockingDatabase."""
        while page := run_sync(self._next_page(db)):
            yield from page

    async def aiterate(self, db: Database) -> AsyncIterator[PendingInterrupt]:
        """Yield the questions, over an AsyncDatabase."""
        while page := await self._next_page(db):
            for question in page:
                yield question

    async def _next_page(self, db: Database) -> list[PendingInterrupt]:
        size = _PAGE if self._left is None else min(_PAGE, self._left)
        if self._ended or size == 0:
            return []
        return await self._fetch(db, size)

    @measured("pending_interrupts")
    async def _fetch(self, db: Database, size: int) -> list[PendingInterrupt]:
        params = {"after": self._after, "size": size, "thread_id": self._thread_id}
        rows = sorted(await db.fetch(LIST_WAITING, params), key=_row_order)
        threads = [_Questions(self._serde, list(of_thread)) for _, of_thread in groupby(rows, lambda r: r[0])]
        self._ended = len(threads) < size
        if threads:
            self._after = threads[-1].thread_id
        if self._left is not None:
            self._left -= len(threads)
        effect_ids = [effect_id for questions in threads for effect_id in questions.effect_ids()]
        asked: dict[Any, Any] = dict(await db.fetch(LIST_ASKED, (effect_ids,))) if effect_ids else {}
        return [question for questions in threads for question in questions.with_effects(asked)]


def _row_order(row: Row) -> Any:
    """Order rows by thread, then from the root graph inwards, then as LangGraph orders writes."""
    thread_id, checkpoint_ns, _, task_path, task_id, idx = row[:6]
    return thread_id, checkpoint_ns.count("|"), checkpoint_ns, writes_sort_key(task_path, task_id, idx)


class _Questions:
    """The questions of one thread, each once, although it may be stored on several checkpoints."""

    def __init__(self, serde: SerializerProtocol, rows: Sequence[Row]) -> None:
        self.thread_id: str = rows[0][0]
        self._questions: dict[Any, PendingInterrupt] = {}
        self._task_ids: dict[Any, set[str]] = {}
        for row in rows:
            for question in _decode_row(serde, row):
                self._add(question, task_id=row[4])

    def _add(self, question: PendingInterrupt, task_id: str) -> None:
        key = question.interrupt_id or (task_id, question.checkpoint_id)
        known = self._questions.get(key)
        if (
            known is not None
        ):  # a subgraph's question is stored on every checkpoint above it; the innermost counts
            self._questions[key] = replace(
                known,
                checkpoint_ns=question.checkpoint_ns,
                checkpoint_id=question.checkpoint_id,
                asked_at=question.asked_at,
                age=question.age,
                unreadable=known.unreadable or question.unreadable,
            )
        elif not question.checkpoint_ns:
            self._questions[key] = question
        self._task_ids.setdefault(key, set()).add(task_id)

    def effect_ids(self) -> list[uuid.UUID]:
        """Return the effects that questions name."""
        named = [_named_effect(question.question) for question in self._questions.values()]
        return [effect_id for effect_id in named if effect_id is not None]

    def with_effects(self, asked: Mapping[Any, Any]) -> Iterator[PendingInterrupt]:
        """Yield the questions; those of the effect log get the effect's id.

        Args:
            asked: Effect id -> the tasks that asked about it.
        """
        for key, question in self._questions.items():
            effect_id = _named_effect(question.question)
            if effect_id is not None and not are_texts(asked.get(effect_id, ())):
                fault = (
                    f"cannot read the notes of effect {format_ulid(effect_id)}, which the question names: one has "
                    "an unknown kind"
                )
                yield replace(question, unreadable=question.unreadable or fault)
                continue
            asking = set(asked.get(effect_id, ()))
            if effect_id is not None and not asking.isdisjoint(self._task_ids[key]):
                yield replace(question, effect_id=format_ulid(effect_id))
            else:
                yield question


def _named_effect(question: Any) -> uuid.UUID | None:
    named = question.get("effect") if isinstance(question, dict) else None
    return parse_ulid(named) if isinstance(named, str) else None


def _decode_row(serde: SerializerProtocol, row: Row) -> Iterator[PendingInterrupt]:
    """Yield the questions of one write; if they cannot be read, one that says so."""
    thread_id, checkpoint_ns, checkpoint_id, _, task_id, _, kind, value, stored_at, created_at, now = row
    what = (
        f"the question of task {task_id!r} of thread {thread_id!r}, namespace {checkpoint_ns!r}, "
        f"checkpoint {checkpoint_id!r}"
    )
    # Old writes have no time, and a damaged one cannot be used: then the checkpoint's time counts.
    fault = time_fault(stored_at=stored_at) if stored_at is not None else time_fault(created_at=created_at)
    asked_at = stored_at if stored_at is not None and fault is None else created_at
    if fault is not None:
        fault = f"cannot read when {what} was stored: {fault}"

    def make(
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
        for found in decode_interrupts(decode(serde, (kind, value), what), what):
            yield make(found.id, found.value, getattr(found, "response_schema", None), fault)
    except CheckpointCorruptedError as exc:
        yield make(None, None, None, str(exc))


def decode_interrupts(stored: Any, what: str) -> list[Any]:
    """Return the interrupts in a write to LangGraph's interrupt channel, which holds one or several.

    Raises:
        CheckpointCorruptedError: It holds something else; the message names it by `what`.
    """
    found = list(stored) if isinstance(stored, (list, tuple)) else [stored]
    if not all(isinstance(getattr(i, "id", None), str) and hasattr(i, "value") for i in found):
        raise CheckpointCorruptedError(f"cannot read {what}: {stored!r:.200} is not an interrupt")
    return found
