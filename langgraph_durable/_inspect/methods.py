"""The methods of DurableSaver that show what is stored and what waits for a human."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from langgraph_durable._inspect.inbox import Inbox
from langgraph_durable._inspect.trail import Timeline
from langgraph_durable._methods import SaverMethods
from langgraph_durable.interrupts import PendingInterrupt
from langgraph_durable.reports import SaverMetrics
from langgraph_durable.timeline import TimelineEntry


class InspectionMethods(SaverMethods):
    """Sync and async pairs; each iterates over pages of rows."""

    def timeline(self, thread_id: str) -> Iterator[TimelineEntry]:
        """Iterate over what happened in a thread, oldest first; an unknown thread has no entries.

        Fetched in pages; no connection is held between them. What appears, in which order: see
        `langgraph_durable.timeline`.

        Raises:
            InvalidConfigError: `thread_id` is invalid.
        """
        return Timeline(self.serde, thread_id, self._context.metrics).iterate(self._db)

    def atimeline(self, thread_id: str) -> AsyncIterator[TimelineEntry]:
        """Iterate over what happened in a thread; see `timeline`."""
        return Timeline(self.serde, thread_id, self._context.metrics).aiterate(self._adb)

    def pending_interrupts(
        self, *, thread_id: str | None = None, after: str = "", limit: int | None = None
    ) -> Iterator[PendingInterrupt]:
        """Iterate over the questions that threads wait with, in the order of thread ids.

        Fetched in pages; no connection is held between them.

        Args:
            thread_id: Only this thread.
            after: Start after this thread: for the next page, pass the last thread of this one.
            limit: The maximum number of threads, each with all its questions.

        Raises:
            InvalidConfigError: An argument is invalid.

        Round trips: 1 for each 100 threads that wait, 1 more if one of their questions names an effect.
        """
        return Inbox(self.serde, self._context.metrics, thread_id, after, limit).iterate(self._db)

    def apending_interrupts(
        self, *, thread_id: str | None = None, after: str = "", limit: int | None = None
    ) -> AsyncIterator[PendingInterrupt]:
        """Iterate over the questions that threads wait with; see `pending_interrupts`."""
        return Inbox(self.serde, self._context.metrics, thread_id, after, limit).aiterate(self._adb)

    def metrics(self) -> SaverMetrics:
        """Return what this saver and its clones have counted in this process, without a query.

        Pools of event loops that have ended are not counted.
        """
        return self._context.metric_sources.read()
