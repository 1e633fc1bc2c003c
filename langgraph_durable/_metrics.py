"""A saver's counters, shared with its clones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from langgraph_durable.reports import Latency, SaverMetrics

P = ParamSpec("P")
T = TypeVar("T")


class Metrics:
    """Counters, safe across threads. The lock is held for a few additions only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies: dict[str, list[float]] = {}
        self.batches = 0
        self.batched_writes = 0
        self.largest_batch = 0
        self.broken_batches = 0
        self.retries = 0
        self.tracing: Callable[[str], AbstractContextManager[object]] | None = None
        """Makes a context manager around each operation from its name; set by `langgraph_durable.otel`."""

    def add_latency(self, operation: str, seconds: float) -> None:
        """Count a call that has ended."""
        with self._lock:
            latency = self._latencies.setdefault(operation, [0, 0.0, 0.0])
            latency[0] += 1
            latency[1] += seconds
            if seconds > latency[2]:
                latency[2] = seconds

    def add_batch(self, writes: int) -> None:
        """Count a batch that was sent."""
        with self._lock:
            self.batches += 1
            self.batched_writes += writes
            self.largest_batch = max(self.largest_batch, writes)

    def add_broken_batch(self) -> None:
        """Count a batch whose writes had to run alone."""
        with self._lock:
            self.broken_batches += 1

    def add_retry(self) -> None:
        """Count a transient fault after which work was retried."""
        with self._lock:
            self.retries += 1

    def latencies(self) -> dict[str, Latency]:
        """Return each operation's calls so far."""
        with self._lock:
            return {
                operation: Latency(int(count), seconds, longest)
                for operation, (count, seconds, longest) in self._latencies.items()
            }


class WriteQueue(Protocol):
    """Writes that wait for a batch."""

    def waiting(self) -> tuple[int, int]:
        """Return how many writes are waiting now, and their approximate bytes."""
        ...


class CountingCache(Protocol):
    """A cache that counts its hits and misses."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...


class CountingPools(Protocol):
    """Pools that count the connections that were requested."""

    def pool_stats(self) -> Mapping[str, int]:
        """Return psycopg_pool's counts, summed over the pools."""
        ...


class MetricSources:
    """Reads a saver's metrics. It has no reference to the saver, so that an exporter does not keep it alive."""

    def __init__(
        self,
        counted: Metrics,
        queue: WriteQueue | None,
        segments: CountingCache,
        pools: Sequence[CountingPools | None],
    ) -> None:
        self._counted = counted
        self._queue = queue
        self._segments = segments
        self._pools = pools

    def read(self) -> SaverMetrics:
        """Return the counts so far."""
        counted = self._counted
        waiting, waiting_bytes = self._queue.waiting() if self._queue is not None else (0, 0)
        pools = Counter[str]()
        for each in self._pools:
            pools.update(each.pool_stats() if each is not None else {})
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
    """Count an operation's calls and duration; trace them if instrumented.

    Failed calls count too. The operation's first argument has the metrics: a Database, or a part of one saver.
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
