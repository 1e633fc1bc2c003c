"""Renewal of the leases of running effects, in a separate thread because a tool may block its event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

Lease = tuple[uuid.UUID, int, timedelta]
"""Effect id, fence, and the time until the lease ends."""
Renew = Callable[[list[Lease]], None]

_RENEWALS_PER_LEASE = 3
_IDLE_SECONDS = 1.0
"""How long the thread outlives the last lease: not much longer than its saver."""
_ANSWER_SECONDS = 10

_logger = logging.getLogger("langgraph_durable")


class LeaseKeeper:
    """Renews the leases of the effects whose bodies run in this process."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._reset()

    def _reset(self) -> None:
        self._held: dict[object, tuple[Lease, float]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextmanager
    def keep(self, effect_id: uuid.UUID, fence: int, lease: timedelta) -> Iterator[None]:
        """Renew a lease until the block ends."""
        token = object()
        if self._pid != os.getpid():  # after a fork, the thread and the leases are the parent's
            self._reset()
        with self._changed:
            self._held[token] = _due((effect_id, fence, lease))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="langgraph_durable-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._held.pop(token, None)
                self._changed.notify()

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            leases = list(due.values())
            try:
                self._renew(leases)
            except Exception as exc:
                _logger.warning("could not renew the leases of %d effects, retrying: %s", len(leases), exc)
            with self._changed:
                for token, lease in due.items():
                    if token in self._held:
                        self._held[token] = _due(lease)

    def _next_due(self) -> dict[object, Lease] | None:
        """Wait for leases to renew; return None if the thread is to end."""
        with self._changed:
            while True:
                if not self._held:
                    if not self._changed.wait(_IDLE_SECONDS) and not self._held:
                        self._thread = None
                        return None
                    continue
                now = time.monotonic()
                due = {token: lease for token, (lease, at) in self._held.items() if at <= now}
                if due:
                    return due
                self._changed.wait(min(at for _, at in self._held.values()) - now)


def _due(lease: Lease) -> tuple[Lease, float]:
    """Return a lease and when to renew it, by the monotonic clock."""
    return lease, time.monotonic() + lease[2].total_seconds() / _RENEWALS_PER_LEASE


def on_loop(
    loop: asyncio.AbstractEventLoop, renew: Callable[[list[Lease]], Coroutine[Any, Any, object]]
) -> Renew:
    """Return a Renew for a saver whose only connections belong to one event loop."""

    def run(leases: list[Lease]) -> None:
        asyncio.run_coroutine_threadsafe(renew(leases), loop).result(_ANSWER_SECONDS)

    return run
