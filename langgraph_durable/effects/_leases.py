"""Leases, renewed while bodies run: from a thread of its own, since a tool may block its event loop."""

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
Renew = Callable[[list[Lease]], None]

_logger = logging.getLogger("langgraph_durable")


class LeaseKeeper:
    """Renews the leases of the effects whose bodies run in this process, each three times before it ends."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._held: dict[object, tuple[Lease, float]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextmanager
    def keep(self, effect_id: uuid.UUID, fence: int, lease: timedelta) -> Iterator[None]:
        """Keep a lease alive until the body ends."""
        token = object()
        if self._pid != os.getpid():  # forked: the thread, and what it held, are the parent's
            self.__init__(self._renew)  # type: ignore[misc] # anew, with a lock that nobody holds
        with self._changed:
            self._held[token] = (effect_id, fence, lease), time.monotonic() + lease.total_seconds() / 3
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
        while True:
            with self._changed:
                if not self._held:
                    # A while, not for ever: a thread that nobody needs should not outlive its saver by much.
                    if not self._changed.wait(1.0) and not self._held:
                        self._thread = None
                        return
                    continue
                now = time.monotonic()
                due = [token for token, (_, at) in self._held.items() if at <= now]
                if not due:
                    self._changed.wait(min(at for _, at in self._held.values()) - now)
                    continue
                leases = [self._held[token][0] for token in due]
            try:
                self._renew(leases)
            except Exception as exc:
                _logger.warning(
                    "could not renew the leases of %d effects, trying again: %s", len(leases), exc
                )
            with self._changed:
                for token in due:
                    if token in self._held:
                        lease = self._held[token][0]
                        self._held[token] = lease, time.monotonic() + lease[2].total_seconds() / 3


def on_loop(
    loop: asyncio.AbstractEventLoop, renew: Callable[[list[Lease]], Coroutine[Any, Any, object]]
) -> Renew:
    """Return a Renew for a saver that has only connections of one event loop."""

    def run(leases: list[Lease]) -> None:
        asyncio.run_coroutine_threadsafe(renew(leases), loop).result(10)

    return run
