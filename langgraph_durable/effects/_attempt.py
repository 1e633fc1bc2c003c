"""An effect in hand: what this process claimed or found done, and which one's body runs here."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langgraph_durable.effects._keys import idempotency_key_of
from langgraph_durable.effects._store import EffectRow
from langgraph_durable.effects.policy import EffectPolicy

_born = secrets.token_hex(3)  # a container that starts again has the name and the pid of the one before


def owner() -> str:
    """Return the name of this process, which no other has or had."""
    return f"{socket.gethostname()}/{os.getpid()}/{_born}"


class Attempt:
    """An effect in hand: what this process claimed, or what it found done."""

    def __init__(
        self, row: EffectRow, policy: EffectPolicy, *, replayed: bool, asked_at: float | None = None
    ) -> None:
        self.row = row
        self.policy = policy
        self.replayed = replayed
        self.asked_at = asked_at
        """When this process asked for it, by its monotonic clock, if it was claimed here: the lease is no older."""
        self.came_from = row.previous_state
        """The state that it was claimed or taken over in: what ends this attempt may not end what was before."""
        self.value: Any = None
        self.raises = False
        """Whether the value is a Command to be raised, as it was by the body."""

    @property
    def is_late(self) -> bool:
        """Tell whether the lease should have been renewed by now, and may have ended, before the body began."""
        if self.asked_at is None:
            return False
        return time.monotonic() - self.asked_at > self.policy.lease.total_seconds() / 3

    @property
    def idempotency_key(self) -> str:
        return idempotency_key_of(self.row.vendor_seed, self.row.generation)


_current: ContextVar[Attempt | None] = ContextVar("langgraph_durable_effect", default=None)


def current_attempt() -> Attempt | None:
    """Return the effect whose body runs here."""
    return _current.get()


@contextmanager
def running(attempt: Attempt) -> Iterator[None]:
    """Make an effect the current one."""
    token = _current.set(attempt)
    try:
        yield
    finally:
        _current.reset(token)
