"""What a saver counts of itself, shared with its clones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from langgraph_durable.reports import Latency, SaverMetrics

if TYPE_CHECKING:
    from langgraph_durable._postgres.connections import Connections
    from langgraph_durable._postgres.group_waiters import GroupCommitters
    from langgraph_durable._segments.cache import SegmentCache

P = ParamSpec("P")
T = TypeVar("T")


class Metrics:
    """Counters; safe across threads. The lock is held for a few additions, never while anything waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies: dict[str, list[float]] = {}
        self.batches = 0
        self.batched_writes = 0
        self.largest_batch = 0
        self.broken_batches = 0
        self.retries = 0
        self.tracing: Callable[[str], AbstractContextManager[object]] | None = None
        """What each operation runs inside of, given its name; None unless `langgraph_durable.otel` was asked for."""

    def add_latency(self, operation: str, seconds: float) -> None:
        """Count a call that ended."""
        with self._lock:
            latency = self._latencies.setdefault(operation, [0, 0.0, 0.0])
            latency[0] += 1
            latency[1] += seconds
            if seconds > latency[2]:
                latency[2] = seconds

    def add_batch(self, writes: int) -> None:
        """Count a batch that went out."""
        with self._lock:
            self.batches += 1
            self.batched_writes += writes
            self.largest_batch = max(self.largest_batch, writes)

    def add_broken_batch(self) -> None:
        """Count a batch whose writes had to go alone."""
        with self._lock:
            self.broken_batches += 1

    def add_retry(self) -> None:
        """Count a transient fault after which work was run again."""
        with self._lock:
            self.retries += 1

    def latencies(self) -> dict[str, Latency]:
        """Return each operation's calls so far."""
        with self._lock:
            return {
                operation: Latency(int(count), seconds, longest)
                for operation, (count, seconds, longest) in self._latencies.items()
            }


class MetricSources:
    """All that a saver's metrics are read from. It knows no saver, so that whoever reads it keeps none alive."""

    def __init__(
        self,
        counted: Metrics,
        groups: GroupCommitters | None,
        segments: SegmentCache,
        pools: Sequence[Connections | None],
    ) -> None:
        self._counted = counted
        self._committers = groups
        self._segments = segments
        self._pools = pools

    def read(self) -> SaverMetrics:
        """Return what was counted so far."""
        counted = self._counted
        waiting, waiting_bytes = self._committers.waiting() if self._committers is not None else (0, 0)
        pools = Counter[str]()
        for connections in self._pools:
            pools.update(connections.pool_stats() if connections is not None else {})
        return SaverMetrics(
            operations=counted.latencies(),
            batches=counted.batches,
            batched_writes=counted.batched_writes,
            largest_batch=counted.largest_batch,
            broken_batches=counted.broken_batches,
            waiting_writes=waiting,
            waiting_bytes=waiting_bytes,
            retries=counted.retries,
            segment_hits=self._segments.hits,
            segment_misses=self._segments.misses,
            pool_requests=pools["requests_num"],
            pool_waits=pools["requests_queued"],
            pool_wait_seconds=pools["requests_wait_ms"] / 1000,
        )


class _Measured(Protocol):
    @property
    def metrics(self) -> Metrics: ...


M = TypeVar("M", bound=_Measured)
Operation = Callable[Concatenate[M, P], Coroutine[Any, Any, T]]


def measured(name: str) -> Callable[[Operation[M, P, T]], Operation[M, P, T]]:
    """Count an operation's calls and their duration, failures included; trace them if the saver is instrumented.

    The operation's first argument (a Database, or an object that belongs to one saver) has the metrics.
    """

    def measure(operation: Operation[M, P, T]) -> Operation[M, P, T]:
        @wraps(operation)
        async def run(self: M, *args: P.args, **kwargs: P.kwargs) -> T:
            metrics = self.metrics
            began = time.perf_counter()
            try:
                if metrics.tracing is None:
                    return await operation(self, *args, **kwargs)
                with metrics.tracing(name):
                    return await operation(self, *args, **kwargs)
            finally:
                metrics.add_latency(name, time.perf_counter() - began)

        return cast("Operation[M, P, T]", run)

    return measure
