"""Reading a timeline in pages: checkpoints, their writes and effect events, merged.

How entries are ordered: docs/design/timeline.md.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from itertools import count
from typing import NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._inspect.entries import Candidate, EntryReader, Step, assemble_steps
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.statement import load
from langgraph_durable._validation import require_thread_id
from langgraph_durable.timeline import TimelineEntry

LIST_STEPS = load(__package__, "list_steps")
LIST_THREAD_EVENTS = load(__package__, "list_thread_events")

_STEPS = 32
"""Checkpoints per page."""
_EVENTS = 200
"""Effect events per page."""


class _Held(NamedTuple):
    """A candidate whose turn has not come yet; ordered by time, then by arrival."""

    at: datetime
    arrival: int
    checkpoint: tuple[str, str] | None
    """Namespace and id of the checkpoint of a write; None for effect events."""
    candidate: Candidate


class Timeline:
    """One iteration over the timeline of a thread, oldest entry first; holds no connection between pages."""

    def __init__(self, serde: SerializerProtocol, thread_id: str, metrics: Metrics) -> None:
        self.metrics = metrics
        self._thread_id = require_thread_id(thread_id)
        self._reader = EntryReader(serde, self._thread_id)
        self._ended = False
        self._steps_after = uuid.UUID(int=0)
        self._events_after: tuple[uuid.UUID | None, int] | None = (None, 0)
        # A heap of what was fetched and comes after the last entry that was yielded.
        self._held: list[_Held] = []
        self._events_held = 0
        self._arrivals = count()

    def iterate(self, db: Database) -> Iterator[TimelineEntry]:
        """Yield the entries, over a BlockingDatabase."""
        while not self._ended:
            yield from run_sync(self._next_page(db))

    async def aiterate(self, db: Database) -> AsyncIterator[TimelineEntry]:
        """Yield the entries, over an AsyncDatabase."""
        while not self._ended:
            for entry in await self._next_page(db):
                yield entry

    @measured("timeline")
    async def _next_page(self, db: Database) -> list[TimelineEntry]:
        params = {"thread_id": self._thread_id, "after": self._steps_after, "size": _STEPS}
        steps = assemble_steps(await db.fetch(LIST_STEPS, params))
        entries: list[TimelineEntry] = []
        for step in steps:
            entries += await self._take_until(db, step.at)
            entries += self._take_causes_of(step)
            entries += self._reader.read_step(step)
            for write in step.writes:
                for candidate in self._reader.read_write(step, write):
                    heapq.heappush(self._held, _Held(write.at, next(self._arrivals), step.key, candidate))
        if steps:
            self._steps_after = steps[-1].ulid
        if len(steps) < _STEPS:
            entries += await self._take_until(db, None)
            self._ended = not self._held and self._events_after is None
        return entries

    async def _take_until(self, db: Database, at: datetime | None) -> list[TimelineEntry]:
        """Take what happened until a time, in the order of time; with None, about a page of events."""
        entries: list[TimelineEntry] = []
        while len(entries) < _EVENTS or at is not None:
            if self._events_after is not None and not self._events_held:
                await self._fetch_events(db)
            if not self._held or (at is not None and self._held[0].at > at):
                break
            held = heapq.heappop(self._held)
            self._events_held -= held.checkpoint is None
            entries += self._reader.deduplicate(held.candidate)
        return entries

    def _take_causes_of(self, step: Step) -> list[TimelineEntry]:
        """Take the writes of its parent's tasks and of the subgraphs they called, whenever they were stored."""
        inside = f"{step.checkpoint_ns}|" if step.checkpoint_ns else ""

        def is_cause(held: _Held) -> bool:
            if held.checkpoint is None:
                return False
            checkpoint_ns, checkpoint_id = held.checkpoint
            if checkpoint_ns == step.checkpoint_ns:
                return checkpoint_id == step.parent_id
            return checkpoint_ns.startswith(inside)

        taken = sorted(held for held in self._held if is_cause(held))
        if taken:
            self._held = [held for held in self._held if not is_cause(held)]
            heapq.heapify(self._held)
        return [entry for held in taken for entry in self._reader.deduplicate(held.candidate)]

    async def _fetch_events(self, db: Database) -> None:
        assert self._events_after is not None  # noqa: S101 (the caller has checked)
        # The page starts after a row, not after its time, which may be one that Python cannot represent.
        after, number = self._events_after
        params = {"thread_id": self._thread_id, "after": after, "after_number": number, "size": _EVENTS}
        rows = await db.fetch(LIST_THREAD_EVENTS, params)
        for row in rows:
            candidate = Candidate(self._reader.read_event(row))
            heapq.heappush(self._held, _Held(row[0], next(self._arrivals), None, candidate))
        self._events_held += len(rows)
        self._events_after = (rows[-1][7], rows[-1][1]) if len(rows) == _EVENTS else None
