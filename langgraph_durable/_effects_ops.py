"""The operations of the effect log, each written once, over any Database."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from ulid import ULID

from langgraph_durable import _effect_statements as sql
from langgraph_durable._checkpoints import are_texts, resolve_checkpoint_id
from langgraph_durable._config import CheckpointRef
from langgraph_durable._database import Database
from langgraph_durable._effect_records import TRANSITIONS, State
from langgraph_durable._rows import Encoded
from langgraph_durable._sessions import Row, Session
from langgraph_durable._times import OutOfRange, time_fault
from langgraph_durable._ulids import show_ulid
from langgraph_durable.errors import CheckpointCorrupted

_INLINE_BYTES = 1 << 20


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
    asked: list[str]
    lease_until: datetime | None
    expired_at: datetime | None
    now: datetime

    @property
    def fault(self) -> str | None:
        """What of it cannot be read, if something cannot."""
        wrong = [
            time_fault(
                lease_until=self.lease_until,
                first_attempt_at=self.first_attempt_at,
                attempted_at=self.attempted_at,
                ended_at=self.ended_at,
                expired_at=self.expired_at,
            ),
            f"state: {self.state!r} is none that is known" if self.state not in TRANSITIONS else None,
            "asked: no list of texts" if not are_texts(self.asked) else None,
            "lease_until: NULL" if self.state in ("claimed", "issued") and self.lease_until is None else None,
        ]
        found = "; ".join(fault for fault in wrong if fault is not None)
        return f"cannot read effect {show_ulid(self.effect_id)}: {found}" if found else None

    @property
    def needs_decision(self) -> bool:
        """Whether nobody will find out how it ended without being asked to: its owner's lease tells nothing, too."""
        if self.state == "issued":
            return self.lease_is_damaged or (self.lease_until is not None and self.lease_until < self.now)
        return self.state == "unknown" or self.state not in TRANSITIONS

    @property
    def lease_is_damaged(self) -> bool:
        """Whether it cannot be told when the owner's lease ends."""
        return self.lease_until is None or isinstance(self.lease_until, OutOfRange)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, as the log keeps it: who asks, for what, from where."""

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

    @property
    def scope_thread(self) -> str:
        """The thread that the key is within; empty for all threads."""
        return self.thread_id or "" if self.scope in ("call", "step", "thread") else ""

    @property
    def vendor_seed(self) -> bytes:
        """What the vendor's key is made from, unlike any other thread's."""
        return hashlib.sha256(self.key + self.scope_thread.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as it is to be stored."""

    state: State
    source: str | None = None
    error: str | None = None
    result: Encoded | None = None
    result_lost: bool = False
    output_hash: bytes | None = None


def new_effect_id() -> uuid.UUID:
    """Return a ULID as Postgres stores it."""
    return ULID().to_uuid()


def kept_memory(fence: int) -> str:
    """Return what an effect remembers of an attempt whose failure leaves the vendor's key; CLAIM heeds it."""
    return f"kept {fence}"


def claim_memory(claim_id: uuid.UUID, fence: int) -> str:
    """Return what an effect remembers of a claim that was not its first; CLAIM writes the same."""
    return f"claim {claim_id} {fence}"


async def claim_effect(
    db: Database | Session,
    call: Call,
    effect_id: uuid.UUID,
    state: State,
    owner: str,
    lease: timedelta,
    *,
    heed_twins: bool,
    resumes: bool,
) -> tuple[int, EffectRow]:
    """Claim an effect, or return it as it is, or a twin of it that must be resolved first.

    Args:
        db: Where.
        call: What is to be done.
        effect_id: The effect's id, if this is its first claim; what this claim is known by, if not.
        state: "claimed", or "issued" if the body runs at once.
        owner: Who claims.
        lease: Time until another worker may take the owner for dead, on the server's clock.
        heed_twins: Whether a first claim waits for effects of the same thread, tool and arguments whose end nobody
            knows.
        resumes: Whether a body that waited for a human runs again though it may have sent something before.

    Returns:
        MINE, SEEN or TWIN, and the effect, or its twin.

    Raises:
        CheckpointCorrupted: The row of the effect, or of its twin, does not tell what became of it.

    Round trips: 1. Transaction: its own.
    """
    input_type, input_ = call.encode_input() or (None, None)
    params = {
        "effect_id": effect_id,
        "scope_thread": call.scope_thread,
        "key": call.key,
        "vendor_seed": call.vendor_seed,
        "thread_id": call.thread_id,
        "checkpoint_ns": call.checkpoint_ns,
        "checkpoint_id": call.checkpoint_id,
        "task_id": call.task_id,
        "run_id": call.run_id,
        "message_id": call.message_id,
        "tool_call_id": call.tool_call_id,
        "tool": call.tool,
        "scope": call.scope,
        "input_hash": call.input_hash,
        "input_type": input_type,
        "input": input_,
        "state": state,
        "actor": owner,
        "reason": None,
        "lease": lease,
        "heed_twins": heed_twins,
        "resumes": resumes,
    }
    while True:
        rows = await db.fetch(sql.CLAIM, params)
        if rows:
            kind, row = rows[0][0], EffectRow(*rows[0][1:])
            if row.state not in TRANSITIONS or not are_texts(row.asked):
                raise CheckpointCorrupted(
                    f"{row.fault}. Nothing is done for it as long as its row is as it is: what became of the effect "
                    "is not known"
                )
            # It has the id that this very call made, or remembers it: it was claimed here, the answer was lost, and
            # this is the retry.
            new = row.effect_id == effect_id and row.fence == 1
            mine = row.state == state and (new or claim_memory(effect_id, row.fence) in row.asked)
            return (sql.MINE if mine else kind), row


async def expire_effect(db: Database, row: EffectRow, actor: str, *, by_hand: bool = False) -> bool:
    """Declare an issued effect unknown if its owner gave no sign for a lease; return whether it did.

    The owner may only stand still, and send later what it was about to: the vendor must know that by its key. A lease
    that is damaged expires only by a human's decision: an owner that lives mends it with its next renewal.
    """
    damaged = by_hand and row.lease_is_damaged
    expired = row.lease_until is not None and row.lease_until < row.now
    if row.state != "issued" or not (expired or damaged):
        return False
    moved = await move_effect(
        db,
        row.effect_id,
        Outcome("unknown", error="its owner gave no sign of life"),
        origins=["issued"],
        actor=actor,
        reason="lease damaged" if damaged else "lease expired",
        fence=row.fence,
        expired=not damaged,
        memory=[kept_memory(row.fence)],
    )
    return moved is not None


async def find_completed(db: Database, call: Call) -> EffectRow | None:
    """Fetch an effect that was completed: what a replay needs, at the price of one read by key."""
    rows = await db.fetch(sql.FIND_COMPLETED, {"scope_thread": call.scope_thread, "key": call.key})
    return EffectRow(*rows[0]) if rows else None


async def move_effect(
    db: Database | Session,
    effect_id: uuid.UUID,
    outcome: Outcome,
    *,
    origins: Sequence[State],
    actor: str | None,
    reason: str | None = None,
    fence: int | None = None,
    expired: bool = False,
    new_owner: bool = False,
    lease: timedelta = timedelta(0),
    task_id: str | None = None,
    run_id: str | None = None,
    memory: Sequence[str] = (),
) -> EffectRow | None:
    """Move an effect to another state, if it is in one of `origins` and, given a fence, nobody moved that.

    Args:
        db: Where; a session inside a transaction, to move it with that.
        effect_id: Which.
        outcome: The state to move it to, with what is known of how it ended.
        origins: States to move it from.
        actor: Who moves it.
        reason: Why, for the audit.
        fence: What the mover holds; None for whatever it is.
        expired: Whether only if its lease ran out.
        new_owner: Whether the mover takes it over, which raises the fence.
        lease: Of the new owner.
        task_id: The task that takes it over.
        run_id: The run that takes it over.
        memory: What it is to remember of that.

    Returns:
        The effect after the move, or None if it was not moved.

    Round trips: 1.
    """
    assert all(outcome.state in TRANSITIONS[origin] for origin in origins), (origins, outcome.state)  # noqa: S101 (no input leads there)
    error, actor, reason = _storable(outcome.error), _storable(actor), _storable(reason)
    result_type, data = outcome.result or (None, None)
    is_large = data is not None and len(data) > _INLINE_BYTES
    rows = await db.fetch(
        sql.MOVE,
        {
            "effect_id": effect_id,
            "to": outcome.state,
            "from": list(origins),
            "fence": fence,
            "expired": expired,
            "new_owner": int(new_owner),
            "lease": lease,
            "task_id": task_id,
            "run_id": run_id,
            "source": outcome.source,
            "error": error,
            "result_type": result_type,
            "result": None if is_large else data,
            "large": data if is_large else None,
            "result_lost": outcome.result_lost,
            "output_hash": outcome.output_hash,
            "memory": list(memory),
            "actor": actor,
            "reason": reason,
        },
    )
    return EffectRow(*rows[0]) if rows else None


async def record_refusal(db: Database, effect_id: uuid.UUID, fence: int, actor: str, reason: str) -> None:
    """Record what an owner reported whose fence was moved."""
    await db.fetch(
        sql.RECORD_REFUSAL, {"effect_id": effect_id, "fence": fence, "actor": actor, "reason": reason}
    )


async def remember(db: Database, effect_id: uuid.UUID, memory: Sequence[str]) -> None:
    """Remember what a task asked a human about an effect, and which answers came; each once.

    Round trips: 1.
    """
    await db.fetch(sql.REMEMBER, {"effect_id": effect_id, "memory": list(memory)})


async def renew_leases(db: Database, leases: Sequence[tuple[uuid.UUID, int, timedelta]]) -> int:
    """Put off the end of leases whose owner is alive, and tell how many there still are."""
    rows = await db.fetch(sql.RENEW, [list(column) for column in zip(*leases, strict=True)])
    return len(rows)


async def get_effect(db: Database, effect_id: uuid.UUID) -> EffectRow | None:
    """Fetch an effect."""
    rows = await db.fetch(sql.GET_EFFECT, {"effect_id": effect_id})
    return EffectRow(*rows[0]) if rows else None


async def get_large_result(db: Database | Session, effect_id: uuid.UUID) -> bytes | None:
    """Fetch a result that is stored apart."""
    rows = await db.fetch(sql.GET_RESULT, (effect_id,))
    return rows[0][0] if rows else None


async def list_effects(
    db: Database,
    *,
    states: Sequence[str] | None = None,
    or_none_known: bool = False,
    tool: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
    after: uuid.UUID | None = None,
    limit: int | None = None,
) -> list[EffectRow]:
    """Fetch effects, oldest first: those in some states, and maybe those in a state that is none."""
    params = {
        "states": list(states) if states is not None else None,
        "known": list(TRANSITIONS) if or_none_known else None,
        "tool": tool,
        "thread_id": thread_id,
        "run_id": run_id,
        "after": after,
        "limit": limit,
    }
    return _effects(await db.fetch(sql.LIST_EFFECTS, params))


async def list_checkpoint_effects(db: Database, ref: CheckpointRef) -> list[EffectRow]:
    """Fetch the effects that the tasks of a checkpoint asked for, the latest one's if `ref` names none.

    Round trips: 1; 2 if the checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    params = {"thread_id": ref.thread_id, "checkpoint_ns": ref.namespace, "checkpoint_id": checkpoint_id}
    return _effects(await db.fetch(sql.LIST_CHECKPOINT_EFFECTS, params))


async def list_events(db: Database, effect_id: uuid.UUID) -> list[Row]:
    """Fetch the history of an effect, oldest first."""
    return await db.fetch(sql.LIST_EVENTS, (effect_id,))


async def checkpoint_exists(db: Database, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> bool:
    """Tell whether a checkpoint is stored."""
    [(exists,)] = await db.fetch(sql.CHECKPOINT_EXISTS, (thread_id, checkpoint_ns, checkpoint_id))
    return bool(exists)


def _storable(text: str | None) -> str | None:
    """Return a text that others wrote without what Postgres cannot hold: NUL and lone surrogates."""
    if text is None:
        return None
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _effects(rows: Sequence[Row]) -> list[EffectRow]:
    return [EffectRow(*row) for row in rows]


async def expire_effects(db: Database, older_than: timedelta, *, dry_run: bool) -> int:
    """Drop the arguments and results of effects that ended longer ago; tell how many those are."""
    params = {"older_than": older_than}
    if dry_run:
        [(count,)] = await db.fetch(sql.COUNT_EXPIRABLE, params)
        return int(count)
    return len(await db.fetch(sql.EXPIRE, params))


async def count_orphans(db: Database) -> int:
    """Count the effects that need a decision and whose thread is gone."""
    [(count,)] = await db.fetch(sql.COUNT_ORPHANS)
    return int(count)
