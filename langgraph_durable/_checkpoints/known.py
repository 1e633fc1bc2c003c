"""Checkpoints that this process knows to be stored, so that the effect log can skip a query."""

from __future__ import annotations

import asyncio

_GENERATION = 4096


class KnownCheckpoints:
    """A bounded set of checkpoints that this process put or read; safe across threads.

    A race may drop a key. Then the database is asked.
    """

    def __init__(self) -> None:
        self._older: dict[tuple[str, str, str], None] = {}
        self._newer: dict[tuple[str, str, str], None] = {}
        self.in_flight: dict[tuple[str, str], asyncio.AbstractEventLoop] = {}
        """(thread, namespace) -> the event loop that is putting one of its checkpoints."""

    def add(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> None:
        """Remember a stored checkpoint."""
        self._newer[thread_id, checkpoint_ns, checkpoint_id] = None
        if len(self._newer) >= _GENERATION:
            self._older, self._newer = self._newer, {}

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._newer or key in self._older
