"""The walk through a thread that a timeline is: steps, what they wrote, and what became of effects, merged."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from itertools import count
from typing import NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable import _config
from langgraph_durable import _reading_statements as sql
from langgraph_durable._database import Database, run_now
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._timeline_entries import Step, TimelineReader, Told, assemble_steps
from langgraph_durable.timeline import TimelineEntry

_STEPS = 32
_EVENTS = 200


class _Held(NamedTuple):
    """What is to be told when its time has come."""

    at: datetime
    arrival: int
    hangs_on: tuple[str, str] | None
    """Namespace and id of a checkpoint; of effects' events none."""
    told: Told


class Timeline:
    """One reading of a thread's audit trail, oldest first, once; in pages, between which it holds no connection."""

    def __init__(self, serde: SerializerProtocol, thread_id: str, metrics: Metrics) -> None:
        self._metrics = metrics
        self._thread_id = _config.require_thread_id(thread_id)
        self._reader = TimelineReader(serde, self._thread_id)
        self._ended = False
        self._steps_after = uuid.UUID(int=0)
        self._events_after: tuple[uuid.UUID | None, int] | None = (None, 0)
        # What happened after the last step that was told, as far as it is known.
        self._held: list[_Held] = []
        self._events_held = 0
        self._arrivals = count()

    def iterate(self, db: Database) -> Iterator[TimelineEntry]:
        """Yield the entries, over a BlockingDatabase."""
        while not self._ended:
            yield from run_now(self._next_page(db))

    async def aiterate(self, db: Database) -> AsyncIterator[TimelineEntry]:
        """Yield the entries, over an AsyncDatabase."""
        while not self._ended:
            for entry in await self._next_page(db):
                yield entry

    @measured("timeline")
    async def _next_page(self, db: Database) -> list[TimelineEntry]:
        params = {"thread_id": self._thread_id, "after": self._steps_after, "size": _STEPS}
        steps = assemble_steps(await db.fetch(sql.LIST_STEPS, params))
        entries: list[TimelineEntry] = []
        for step in steps:
            entries += await self._take_until(db, step.at)
            entries += self._take_what_led_to(step)
            entries += self._reader.step(step)
            for write in step.writes:
                for told in self._reader.write(step, write):
                    heapq.heappush(self._held, _Held(write.at, next(self._arrivals), step.key, told))
        if steps:
            self._steps_after = steps[-1].ulid
        if len(steps) < _STEPS:
            entries += await self._take_until(db, None)
            self._ended = not self._held and self._events_after is None
        return entries

    async def _take_until(self, db: Database, at: datetime | None) -> list[TimelineEntry]:
        """Take what happened until some time, in the order of time; with None as much as a page of events is."""
        entries: list[TimelineEntry] = []
        while len(entries) < _EVENTS or at is not None:
            if self._events_after is not None and not self._events_held:
                await self._fetch_events(db)
            if not self._held or (at is not None and self._held[0][0] > at):
                break
            held = heapq.heappop(self._held)
            self._events_held -= held.hangs_on is None
            entries += self._reader.tell_once(held.told)
        return entries

    def _take_what_led_to(self, step: Step) -> list[TimelineEntry]:
        """Take what its parent's tasks wrote, and the subgraphs they called, whenever that was stored."""
        inside = f"{step.checkpoint_ns}|" if step.checkpoint_ns else ""

        def led_to(held: _Held) -> bool:
            if held.hangs_on is None:
                return False
            checkpoint_ns, checkpoint_id = held.hangs_on
            if checkpoint_ns == step.checkpoint_ns:
                return checkpoint_id == step.parent_id
            return checkpoint_ns.startswith(inside)

        taken = sorted(held for held in self._held if led_to(held))
        if taken:
            self._held = [held for held in self._held if not led_to(held)]
            heapq.heapify(self._held)
        return [entry for held in taken for entry in self._reader.tell_once(held.told)]

    async def _fetch_events(self, db: Database) -> None:
        assert self._events_after is not None  # noqa: S101 (asked for by the caller)
        # By the last one's row, not by its time, which may be one that Python cannot hold.
        after, number = self._events_after
        params = {"thread_id": self._thread_id, "after": after, "after_number": number, "size": _EVENTS}
        rows = await db.fetch(sql.LIST_THREAD_EVENTS, params)
        for row in rows:
            told = Told(self._reader.event(row))
            heapq.heappush(self._held, _Held(row[0], next(self._arrivals), None, told))
        self._events_held += len(rows)
        self._events_after = (rows[-1][7], rows[-1][1]) if len(rows) == _EVENTS else None
