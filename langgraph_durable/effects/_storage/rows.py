"""Effects as they are stored: an effect's row, the request it is claimed by, and the moves between its states."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.times import OutOfRange, time_fault
from langgraph_durable.effects.records import TRANSITIONS, State


class ClaimKind(str, Enum):
    """What a claim found; CLAIM returns the values."""

    CLAIMED = "claimed"
    EXISTING = "existing"
    """The effect exists and may not be claimed."""
    DUPLICATE = "duplicate"
    """Another effect that may be the same must be resolved first."""
    CANDIDATE = "candidate"
    """There are completed effects whose outcome the call may be asking for again."""


class Relation(str, Enum):
    """How an effect relates to a task that may be asking for it again; docs/design/identity.md has the table."""

    OWN = "own"
    """The task carried it out or was given its outcome; it runs again."""
    DELIVERED = "delivered"
    """Its outcome is in the state that the task was made from."""
    SIBLING = "sibling"
    """It was requested in the same step."""
    UNDELIVERED = "undelivered"
    """Its step was abandoned, or its node was retried."""
    FORK = "fork"
    """It is on another branch of the history."""
    GONE = "gone"
    """It is not known, because checkpoints were pruned."""


class NoteKind(str, Enum):
    """What a note says; the table effect_notes has the values."""

    QUESTION = "question"
    """The task asked a human about the effect, as it was under the fence."""
    ANSWER = "answer"
    """An answer was used; the token is its hash."""
    WAITING = "waiting"
    """The task waits for a decision on this effect, a possible duplicate of the task's."""
    REFUSED = "refused"
    """A human answered the task that the effect failed and must not be retried there."""
    FORK = "fork"
    """The task's decision about a fork; the token is "replay" or "new"."""
    DECISION = "decision"
    """A decision moved the effect; the token is the id by which a retried statement recognizes its own move."""
    ADOPTED = "adopted"
    """The task's call took the outcome; the token is the id of its effect."""
    ACKNOWLEDGED = "acknowledged"
    """A human dealt with the effect."""


_NOTE_KINDS = frozenset(kind.value for kind in NoteKind)


class Note(NamedTuple):
    """What an effect remembers of a question or a decision; see NoteKind."""

    kind: str
    task_id: str = ""
    fence: int = 0
    token: str = ""


class EffectRow(NamedTuple):
    """An effect as stored, and the server's time when it was read."""

    effect_id: uuid.UUID
    tool: str
    state: State
    previous_state: State | None
    scope: str
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    task_id: str | None
    run_id: str | None
    message_id: str | None
    tool_call_id: str | None
    attempts: int
    generation: int
    fence: int
    owner: str | None
    first_attempt_at: datetime
    attempted_at: datetime
    ended_at: datetime | None
    source: str | None
    error: str | None
    result_lost: bool
    key: bytes
    vendor_seed: bytes
    input_hash: bytes
    input_type: str | None
    input: bytes | None
    result_type: str | None
    result: bytes | None
    output_hash: bytes | None
    lease_until: datetime | None
    expired_at: datetime | None
    claim_id: uuid.UUID | None
    """The claim that the fence belongs to; None for the first one, whose id is the effect's."""
    keeps_key: bool
    """Whether a failure of the attempt under this fence leaves the idempotency key as it is."""
    now: datetime
    note_count: int
    notes: frozenset[Note]

    @property
    def fault(self) -> str | None:
        """What of the row cannot be read; None if all of it can."""
        wrong = [
            time_fault(
                lease_until=self.lease_until,
                first_attempt_at=self.first_attempt_at,
                attempted_at=self.attempted_at,
                ended_at=self.ended_at,
                expired_at=self.expired_at,
            ),
            None if self.state in TRANSITIONS else f"state: {self.state!r} is not a known state",
            f"notes: {strange!r} is not a known kind" if (strange := self.strange_note) else None,
            "lease_until: NULL" if self.state in ("claimed", "issued") and self.lease_until is None else None,
        ]
        found = "; ".join(fault for fault in wrong if fault is not None)
        return f"cannot read effect {format_ulid(self.effect_id)}: {found}" if found else None

    @property
    def strange_note(self) -> str | None:
        """A kind of its notes that is not known, if there is one."""
        return min((note.kind for note in self.notes if note.kind not in _NOTE_KINDS), default=None)

    @property
    def needs_decision(self) -> bool:
        """Whether the end stays unknown until someone decides; so it does if the owner's lease is damaged."""
        if self.state == "issued":
            return self.lease_is_damaged or (self.lease_until is not None and self.lease_until < self.now)
        return self.state == "unknown" or self.state not in TRANSITIONS

    @property
    def lease_is_damaged(self) -> bool:
        """Whether the end of the owner's lease is not known."""
        return self.lease_until is None or isinstance(self.lease_until, OutOfRange)


@dataclass(frozen=True, slots=True)
class EffectRequest:
    """The effect that a call asks for: its identity, its arguments and where the call comes from."""

    key: bytes
    tool: str
    scope: str
    input_hash: bytes
    encode_input: Callable[[], Encoded | None]
    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    message_id: str | None = None
    tool_call_id: str | None = None
    checkpoints: str | None = None
    """The checkpoints that lead to the call, as JSON: namespace -> checkpoint id, of each graph that encloses it."""
    outer_id: uuid.UUID | None = None
    """The effect whose body makes the call."""


@dataclass(frozen=True, slots=True)
class Claim:
    """How a process claims an effect.

    Attributes:
        claim_id: Of this claim; becomes the effect's id if the effect is new.
        state: "claimed", or "issued" if the body runs at once.
        owner: The claiming process.
        lease: Time until another worker may treat the owner as dead, on the server's clock.
        check_duplicates: Whether a first claim waits for effects of the same thread, tool and arguments whose end is
            unknown.
        resumes: Whether a body that waited for a human runs again although it may have sent something before.
        check_candidates: Whether a first claim stops if there are completed effects whose outcome it may be asking for.
        may_be_new: Whether to try first to create the effect, which is cheaper where that succeeds.
    """

    claim_id: uuid.UUID
    state: State
    owner: str
    lease: timedelta
    check_duplicates: bool
    resumes: bool
    check_candidates: bool = False
    may_be_new: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as it is stored."""

    state: State
    source: str | None = None
    error: str | None = None
    result: Encoded | None = None
    result_lost: bool = False
    output_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A move of an effect to another state, and the conditions under which it is made.

    Attributes:
        outcome: The state to move to, and what is known of how the attempt ended.
        origins: States to move from.
        actor: Who moves the effect.
        reason: Why, for the audit log.
        fence: The fencing token of the mover; None for any.
        expired: Whether to move only if the lease has ended.
        new_owner: Whether the mover takes the effect over, which raises the fence.
        lease: Of the new owner.
        task_id: The task that takes the effect over.
        run_id: The run that takes the effect over.
        checkpoint_ns: Of that task.
        checkpoint_id: Of that task.
        checkpoints: Of that task, as in EffectRequest.
        claim_id: By which a retried take-over recognizes itself.
        keeps_key: Whether a failure of the attempt leaves the idempotency key as it is.
        notes: To add to the effect's notes.
    """

    outcome: Outcome
    origins: Sequence[State]
    actor: str | None
    reason: str | None = None
    fence: int | None = None
    expired: bool = False
    new_owner: bool = False
    lease: timedelta = timedelta(0)
    task_id: str | None = None
    run_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    checkpoints: str | None = None
    claim_id: uuid.UUID | None = None
    keeps_key: bool = False
    notes: Sequence[Note] = ()


# --- parameters of statements ---


def claim_params(request: EffectRequest, claim: Claim) -> dict[str, object]:
    """Return the parameters of a claim."""
    scope_thread = scope_thread_of(request)
    return {
        **request_params(request),
        "effect_id": claim.claim_id,
        # The idempotency key is derived from it, and another thread's is different.
        "vendor_seed": hashlib.sha256(request.key + scope_thread.encode("utf-8", "surrogatepass")).digest(),
        "state": claim.state,
        "actor": claim.owner,
        "reason": None,
        "lease": claim.lease,
        "check_duplicates": claim.check_duplicates,
        "check_candidates": claim.check_candidates,
        "resumes": claim.resumes,
    }


def request_params(request: EffectRequest) -> dict[str, object]:
    """Return the parameters of a statement that creates the requested effect: its identity, arguments and place."""
    input_type, input_ = request.encode_input() or (None, None)
    return {
        "scope_thread": scope_thread_of(request),
        "key": request.key,
        "thread_id": request.thread_id,
        "checkpoint_ns": request.checkpoint_ns,
        "checkpoint_id": request.checkpoint_id,
        "checkpoints": request.checkpoints,
        "task_id": request.task_id,
        "run_id": request.run_id,
        "message_id": request.message_id,
        "tool_call_id": request.tool_call_id,
        "outer_id": request.outer_id,
        "tool": request.tool,
        "scope": request.scope,
        "input_hash": request.input_hash,
        "input_type": input_type,
        "input": input_,
    }


def scope_thread_of(request: EffectRequest) -> str:
    """Return the thread within which the key is unique; empty for all threads."""
    return request.thread_id or "" if request.scope in ("call", "step", "thread") else ""
