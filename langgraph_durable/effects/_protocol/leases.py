"""Renewal of the leases of running effects, in a separate thread because a tool may block its event loop."""

from __future__ import annotations

import asyncio
import logging
import math
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
        self._held: dict[object, _Held] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextmanager
    def keep(
        self, effect_id: uuid.UUID, fence: int, lease: timedelta, timeout: timedelta | None = None
    ) -> Iterator[None]:
        """Renew a lease until the block ends, or until the timeout.

        A sync body cannot be stopped. Without a renewal its lease ends, so that others may decide on its effect.
        """
        token = object()
        until = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        if self._pid != os.getpid():  # after a fork, the thread and the leases are the parent's
            self._reset()
        with self._changed:
            self._held[token] = _Held((effect_id, fence, lease), until)
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
                for token in due:
                    if token in self._held:
                        self._held[token] = _Held(self._held[token].lease, self._held[token].until)

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
                self._held = {token: held for token, held in self._held.items() if held.until > now}
                due = {token: held.lease for token, held in self._held.items() if held.due_at <= now}
                if due:
                    return due
                if self._held:
                    self._changed.wait(min(held.due_at for held in self._held.values()) - now)


class _Held:
    """A lease, when to renew it next, and when to stop; times are by the monotonic clock."""

    def __init__(self, lease: Lease, until: float) -> None:
        self.lease = lease
        self.until = until
        self.due_at = time.monotonic() + lease[2].total_seconds() / _RENEWALS_PER_LEASE


def on_loop(
    loop: asyncio.AbstractEventLoop, renew: Callable[[list[Lease]], Coroutine[Any, Any, object]]
) -> Renew:
    """Return a Renew for a saver whose only connections belong to one event loop."""

    def run(leases: list[Lease]) -> None:
        asyncio.run_coroutine_threadsafe(renew(leases), loop).result(_ANSWER_SECONDS)

    return run
