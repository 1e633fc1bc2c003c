"""The half of DurableSaver that shows people what is stored and what waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from langgraph_durable._inspect.inbox import Inbox
from langgraph_durable._inspect.trail import Timeline
from langgraph_durable._methods import SaverMethods
from langgraph_durable.interrupts import PendingInterrupt
from langgraph_durable.reports import SaverMetrics
from langgraph_durable.timeline import TimelineEntry


class InspectionMethods(SaverMethods):
    """Sync and async pairs, each a walk through pages of rows."""

    def timeline(self, thread_id: str) -> Iterator[TimelineEntry]:
        """Iterate over what happened in a thread, oldest first, fetched in pages; an unknown thread has nothing.

        No connection is held between pages. What is told, and in which order: see `langgraph_durable.timeline`.

        Raises:
            InvalidConfigError: `thread_id` cannot be used.
        """
        return Timeline(self.serde, thread_id, self._context.metrics).iterate(self._db)

    def atimeline(self, thread_id: str) -> AsyncIterator[TimelineEntry]:
        """Iterate over what happened in a thread, oldest first; see `timeline`."""
        return Timeline(self.serde, thread_id, self._context.metrics).aiterate(self._adb)

    def pending_interrupts(
        self, *, thread_id: str | None = None, after: str = "", limit: int | None = None
    ) -> Iterator[PendingInterrupt]:
        """Iterate over what threads wait for a human with, by thread; fetched in pages, each by one query.

        No connection is held between pages.

        Args:
            thread_id: Only this thread's.
            after: Go on after this thread: for a page, the last one's of the page before.
            limit: At most this many threads, each with all its questions.

        Raises:
            InvalidConfigError: An argument cannot be used.

        Round trips: 1 for each 100 threads that wait, 1 more if a question of theirs names an effect.
        """
        return Inbox(self.serde, self._context.metrics, thread_id, after, limit).iterate(self._db)

    def apending_interrupts(
        self, *, thread_id: str | None = None, after: str = "", limit: int | None = None
    ) -> AsyncIterator[PendingInterrupt]:
        """Iterate over what threads wait for a human with; see `pending_interrupts`."""
        return Inbox(self.serde, self._context.metrics, thread_id, after, limit).aiterate(self._adb)

    def metrics(self) -> SaverMetrics:
        """Return what this saver and its clones have counted in this process; asks no database.

        Pools of event loops that have ended are not counted.
        """
        return self._context.metric_sources.read()
