"""One call of an effect, and the attempt that it claimed or found done."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._context import SaverContext
from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.database import Database
from langgraph_durable.effects._identity.execution import Calls
from langgraph_durable.effects._identity.hashing import idempotency_key_of
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._protocol.leases import LeaseKeeper
from langgraph_durable.effects._storage.rows import EffectRequest, EffectRow
from langgraph_durable.effects.policy import EffectPolicy

_process_token = secrets.token_hex(3)  # a restarted container has the host name and pid of the one before


def owner() -> str:
    """Return the name of this process; no other process has or had it."""
    return f"{socket.gethostname()}/{os.getpid()}/{_process_token}"


@dataclass(slots=True, eq=False)
class EffectCall:
    """One call of an effect: what it asks for, where it runs, and its policy."""

    db: Database
    context: SaverContext
    serde: SerializerProtocol
    leases: LeaseKeeper
    request: EffectRequest
    policy: EffectPolicy
    place: Place | None
    """Where in a running graph the call comes from; None outside of one."""
    named: bool
    """Whether the caller gave the key, so that a lost checkpoint cannot change it."""
    is_alone: bool = True
    """Whether no other call runs in the same task, so that any answer to the task is for this one."""
    counted_in: Calls | None = None
    """The other calls of a task, or of an outer effect, that runs again, if this call's arguments are in its key."""
    family: bytes | None = None
    """The key that several calls share, if they do; the request then has the one with this call's number."""
    takes_candidates: bool = True
    """Whether effects under other keys may be this call's; False once it is known that none is."""
    problem: str | None = None
    """What is wrong with the last answer of the human, who has to be asked again."""

    @property
    def metrics(self) -> Metrics:
        """The counters of the saver."""
        return self.context.metrics

    @property
    def resumes(self) -> bool:
        """Whether a body that waited for a human runs again although it may have sent something before."""
        return self.policy.verify is None or self.policy.idempotent

    @property
    def can_find_out(self) -> bool:
        """Whether it matters what became of an effect that waits for a human, and someone can say it."""
        policy = self.policy
        return not policy.idempotent and (policy.verify is not None or policy.on_unknown in ("ask", "retry"))


def describe(row: EffectRow) -> str:
    """Return how messages name an effect."""
    thread = f" of thread {row.thread_id!r}" if row.thread_id is not None else ""
    return f"effect {format_ulid(row.effect_id)} ({row.tool!r}{thread})"


class Attempt:
    """An effect that this process claimed, or found done."""

    def __init__(
        self, row: EffectRow, policy: EffectPolicy, *, replayed: bool, claimed_at: float | None = None
    ) -> None:
        self.row = row
        self.policy = policy
        self.replayed = replayed
        self.claimed_at = claimed_at
        """When this process sent its claim, by its monotonic clock; the lease does not begin before that."""
        self.came_from = row.previous_state
        """The state before the claim. The end of this attempt says nothing about an attempt before it."""
        self.calls = Calls()
        """The effects that the body calls."""
        self.value: Any = None
        self.raises = False
        """Whether the value is a Command that the body raised, so that a replay raises it too."""

    @property
    def is_late(self) -> bool:
        """Whether the lease should have been renewed by now: it may have ended before the body began."""
        if self.claimed_at is None:
            return False
        return time.monotonic() - self.claimed_at > self.policy.lease.total_seconds() / 3

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
