"""Recovery of effects whose end is unknown: they are verified, run again, or a human is asked."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.drivers import BlockingDatabase
from langgraph_durable._postgres.times import OutOfRange
from langgraph_durable.effects._protocol import effect_errors, questions
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, owner
from langgraph_durable.effects._protocol.matching import adopt_duplicate, wants_new_if_old
from langgraph_durable.effects._protocol.run import Decision, resolve
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.encoding import record_of
from langgraph_durable.effects._storage.rows import EffectRow, Outcome, Transition
from langgraph_durable.effects.policy import Finding, Happened, NotHappened, Undetermined
from langgraph_durable.effects.records import EffectRecord
from langgraph_durable.errors import EffectError, EffectUnknownError

_SHORTEST_SLEEP = 0.001


async def recover(
    call: EffectCall, row: EffectRow, deadline: float, *, run_again: bool = True
) -> Attempt | None:
    """Find out what became of an unknown effect, or take it over.

    Args:
        call: The call that reached it.
        row: The effect, or a possible duplicate of the call's.
        deadline: Until when to wait for the vendor, by the monotonic clock.
        run_again: Whether the policy may run it again.

    Returns:
        The attempt that took it over, or None if it has to be read again.

    Raises:
        EffectUnknownError: Neither is possible.
        GraphInterrupt: A human is asked.
    """
    policy = call.policy
    if policy.idempotent and run_again:
        return await _take_over(call, row, "idempotent")
    if policy.verify is not None and await _apply_finding(call, row, await _verify(call, row), deadline):
        return None
    if policy.on_unknown == "retry" and run_again and _is_in_window(call, row):
        return await _take_over(call, row, "the vendor knows its key")
    if policy.on_unknown in ("ask", "retry") and call.place is not None:
        await questions.ask(call, row)
    raise effect_errors.unknown(row)


async def check_duplicate(call: EffectCall, row: EffectRow, deadline: float) -> Attempt | None:
    """Find out what became of a possible duplicate of the call's effect; if it took place, so did this one.

    Returns:
        The replay of the duplicate's result, or None if the call's effect has to be claimed again.
    """
    now = await store.get_effect(call.db, row.effect_id)
    if now is not None and now.state == "unknown" and call.policy.verify is not None:
        await _apply_finding(call, now, await _verify(call, now), deadline)
        now = await store.get_effect(call.db, row.effect_id)
    if now is None or now.state not in ("unknown", "completed") or await wants_new_if_old(call, now):
        return None
    if now.state == "unknown":
        try:
            await recover(call, now, deadline, run_again=False)
        except EffectUnknownError:
            await questions.note_waiting(call, now)
            raise
        now = await store.get_effect(call.db, row.effect_id)
    if now is None or now.state != "completed":
        return None
    return await call.db.finish(adopt_duplicate(call, now))


# --- verification ---


async def _verify(call: EffectCall, row: EffectRow) -> Finding:
    """Ask the policy's verify.

    Raises:
        EffectUnknownError: It failed.
        EffectError: It cannot be used.
    """
    assert call.policy.verify is not None  # noqa: S101 (the caller checks it)
    tool = call.request.tool
    try:
        finding = await _call_verify(call, record_of(call.serde, row))
    except Exception as exc:
        raise effect_errors.unknown(row, exc) from exc
    if isawaitable(finding):
        if iscoroutine(finding):
            finding.close()
        raise EffectError(
            f"verify of {tool!r} is async, but the tool is sync. Make both alike", format_ulid(row.effect_id)
        )
    if not isinstance(finding, (Happened, NotHappened, Undetermined)):
        raise EffectError(
            f"verify of {tool!r} returned {finding!r:.100}. Return Happened(result), NotHappened() or Undetermined()",
            format_ulid(row.effect_id),
        )
    return finding


async def _call_verify(call: EffectCall, record: EffectRecord) -> Any:
    """Return what verify returns; for async tools, awaited.

    A sync verify of an async tool runs in a thread: it waits for the provider, and would block the event loop.
    """
    verify: Any = call.policy.verify
    if isinstance(call.db, BlockingDatabase):
        return verify(record)
    finding = verify(record) if iscoroutinefunction(verify) else await asyncio.to_thread(verify, record)
    return await finding if isawaitable(finding) else finding


async def _apply_finding(call: EffectCall, row: EffectRow, finding: Finding, deadline: float) -> bool:
    """Record what verify found, or wait to ask it again; return whether the effect has to be read again."""
    if isinstance(finding, Undetermined):
        return finding.retry_in is not None and await _sleep_until(call, finding.retry_in, deadline)
    if isinstance(finding, NotHappened):
        # Counted from the end of the attempt: a slow body may send its request last.
        ended = row.lease_until or row.attempted_at
        # The end of a damaged row is not known, so the clock cannot decide.
        rest = (
            timedelta.max if isinstance(ended, OutOfRange) else call.policy.verify_after - (row.now - ended)
        )
        if rest > timedelta(0):
            return await _sleep_until(call, rest, deadline)
    await resolve(call.db, call.serde, row, Decision(finding, "verified", owner(), "verified"))
    return True


async def _sleep_until(call: EffectCall, rest: timedelta, deadline: float) -> bool:
    """Wait, unless that would end after the deadline; return whether it waited."""
    if time.monotonic() + rest.total_seconds() > deadline:
        return False
    await call.db.sleep(max(rest.total_seconds(), _SHORTEST_SLEEP))
    return True


# --- another attempt ---


def _is_in_window(call: EffectCall, row: EffectRow) -> bool:
    """Return whether the vendor still honours the idempotency key."""
    window = call.policy.idempotency_window
    if window is None:
        return True
    # From the first attempt on: when the vendor first saw this key is not known more precisely.
    return not isinstance(row.first_attempt_at, OutOfRange) and row.now - row.first_attempt_at < window


async def _take_over(call: EffectCall, row: EffectRow, reason: str) -> Attempt | None:
    """Take over an unknown effect to run it again under the same idempotency key; None if another process did."""
    claimed_at = time.monotonic()
    claim_id = store.new_effect_id()
    transition = Transition(
        Outcome("issued"),
        ["unknown"],
        owner(),
        reason=reason,
        fence=row.fence,
        new_owner=True,
        lease=call.policy.lease,
        task_id=call.request.task_id,
        run_id=call.request.run_id,
        checkpoint_ns=call.request.checkpoint_ns,
        checkpoint_id=call.request.checkpoint_id,
        checkpoints=call.request.checkpoints,
        claim_id=claim_id,
    )
    moved = await store.move_effect(call.db, row.effect_id, transition)
    if moved is None:
        now = await store.get_effect(call.db, row.effect_id)
        if now is None or now.state != "issued" or now.claim_id != claim_id:
            return None
        moved = now  # the statement ran, its answer was lost, and it was retried
    return Attempt(moved, call.policy, replayed=False, claimed_at=claimed_at)
