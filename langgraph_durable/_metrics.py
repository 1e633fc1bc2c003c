"""What a saver counts of itself, shared with its clones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from langgraph_durable.reports import Latency

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


class _Measured(Protocol):
    _metrics: Metrics


M = TypeVar("M", bound=_Measured)
Operation = Callable[Concatenate[M, P], Coroutine[Any, Any, T]]


def measured(operation: Operation[M, P, T]) -> Operation[M, P, T]:
    """Count an operation's calls, and the time until they end, well or not, under its name."""
    name = operation.__name__.lstrip("_")

    @wraps(operation)
    async def run(self: M, *args: P.args, **kwargs: P.kwargs) -> T:
        began = time.perf_counter()
        try:
            return await operation(self, *args, **kwargs)
        finally:
            self._metrics.add_latency(name, time.perf_counter() - began)

    return cast("Operation[M, P, T]", run)
