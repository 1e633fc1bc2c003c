"""What is done about an effect when nobody knows whether it took place: it is verified, run again, or asked about."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable import _effect_statements as sql
from langgraph_durable import _effects_ops as ops
from langgraph_durable._database import BlockingDatabase, Database
from langgraph_durable._effect_records import State
from langgraph_durable._effects_ops import EffectRow, Outcome
from langgraph_durable._times import OutOfRange
from langgraph_durable._ulids import show_ulid
from langgraph_durable.effects import _questions
from langgraph_durable.effects._attempts import Attempt, owner
from langgraph_durable.effects._calls import digest
from langgraph_durable.effects._records import encode_result
from langgraph_durable.effects.policy import Finding, Happened, NotHappened, Undetermined
from langgraph_durable.errors import EffectError, EffectUnknown

if TYPE_CHECKING:
    from langgraph_durable.effects._guard import Guard


async def settle_twin(guard: Guard, row: EffectRow, deadline: float, state: State) -> Attempt | None:
    """Find out what became of a twin; if it happened, so did this."""
    after = await ops.get_effect(guard.db, row.effect_id)
    if after is not None and after.state == "unknown":
        try:
            await settle(guard, after, deadline, run_again=False)
        except EffectUnknown:
            await _questions.note_waiting(guard, after)
            raise
        after = await ops.get_effect(guard.db, row.effect_id)
    if after is None or after.state != "completed":
        return None
    return await guard.db.finish(_adopt(guard, after, state))


async def _adopt(guard: Guard, twin: EffectRow, state: State) -> Attempt | None:
    """Record that the effect is its twin, which took place."""
    kind, mine = await ops.claim_effect(
        guard.db,
        guard.call,
        ops.new_effect_id(),
        state,
        owner(),
        guard.policy.lease,
        heed_twins=False,
        resumes=guard.resumes,
    )
    if kind != sql.MINE:
        return None
    encoded = await guard.stored_result(twin)
    moved = await ops.move_effect(
        guard.db,
        mine.effect_id,
        Outcome("completed", source=twin.source, result=encoded, result_lost=twin.result_lost),
        origins=["claimed", "issued"],
        actor=owner(),
        reason=f"is effect {show_ulid(twin.effect_id)}, asked for twice",
        fence=mine.fence,
    )
    return await guard.replay(moved) if moved is not None else None


async def settle(guard: Guard, row: EffectRow, deadline: float, *, run_again: bool = True) -> Attempt | None:
    """Decide on an effect whose end is unknown, or raise; None to look at it again."""
    policy = guard.policy
    if policy.idempotent and run_again:
        return await _take_over(guard, row, "idempotent")
    if policy.verify is not None:
        finding = await _verify(guard, row)
        if isinstance(finding, Happened):
            await resolve(
                guard.db, guard.serde, row, finding, source="verified", actor=owner(), reason="verified"
            )
            return None
        if isinstance(finding, NotHappened):
            # Not from when it began: a slow body may send what it sends at its end.
            ended = row.lease_until or row.attempted_at
            # When it ended is not known of a damaged row: then it is not for the clock to decide.
            rest = timedelta.max if isinstance(ended, OutOfRange) else policy.settle - (row.now - ended)
            if rest <= timedelta(0):
                await resolve(
                    guard.db, guard.serde, row, finding, source="verified", actor=owner(), reason="verified"
                )
                return None
            if await _sleep_until(guard, rest, deadline):
                return None
        elif finding.retry_in is not None and await _sleep_until(guard, finding.retry_in, deadline):
            return None
    if policy.on_unknown == "retry" and run_again:
        # From the first attempt on: when the vendor saw this key first is not known better.
        window = policy.vendor_window
        is_known = not isinstance(row.first_attempt_at, OutOfRange)
        if window is None or (is_known and row.now - row.first_attempt_at < window):
            return await _take_over(guard, row, "the vendor knows its key")
    if policy.on_unknown in ("ask", "retry") and guard.place is not None:
        await _questions.ask(guard, row)
    raise _unknown(guard, row)


async def _verify(guard: Guard, row: EffectRow) -> Finding:
    assert guard.policy.verify is not None  # noqa: S101 (asked for by the caller)
    try:
        finding = guard.policy.verify(guard.record(row))
        if isawaitable(finding) and not isinstance(guard.db, BlockingDatabase):
            finding = await finding
    except Exception as exc:
        raise _unknown(guard, row, exc) from exc
    if isawaitable(finding):
        if iscoroutine(finding):
            finding.close()
        raise EffectError(f"verify of {guard.call.tool!r} is async, but the tool is not: make both alike")
    if not isinstance(finding, (Happened, NotHappened, Undetermined)):
        raise EffectError(
            f"verify of {guard.call.tool!r} returned {finding!r:.100}: return Happened(result), NotHappened() or "
            "Undetermined()"
        )
    return finding


async def _sleep_until(guard: Guard, rest: timedelta, deadline: float) -> bool:
    """Wait, if that ends before the deadline."""
    if time.monotonic() + rest.total_seconds() > deadline:
        return False
    await guard.db.sleep(max(rest.total_seconds(), 0.001))
    return True


async def _take_over(guard: Guard, row: EffectRow, reason: str) -> Attempt | None:
    """Run an unknown effect again, with the same key for the vendor."""
    asked_at = time.monotonic()
    memory = ops.claim_memory(ops.new_effect_id(), row.fence + 1)
    moved = await ops.move_effect(
        guard.db,
        row.effect_id,
        Outcome("issued"),
        origins=["unknown"],
        actor=owner(),
        reason=reason,
        fence=row.fence,
        new_owner=True,
        lease=guard.policy.lease,
        task_id=guard.call.task_id,
        run_id=guard.call.run_id,
        memory=[memory],
    )
    if moved is None:
        now = await ops.get_effect(guard.db, row.effect_id)
        if now is None or now.state != "issued" or now.fence != row.fence + 1 or memory not in now.asked:
            return None
        moved = now  # the statement ran, and its answer was lost: it was retried
    return Attempt(moved, guard.policy, replayed=False, asked_at=asked_at)


def _unknown(guard: Guard, row: EffectRow, cause: Exception | None = None) -> EffectUnknown:
    effect_id = show_ulid(row.effect_id)
    how = f" (verify failed: {cause})" if cause is not None else ""
    return EffectUnknown(
        f"{guard.what(row)} was attempted and nobody knows whether it took place{how}: give its policy a verify= "
        f"or on_unknown=, or decide with EffectLog.resolve({effect_id!r}, ...) or "
        f"`python -m langgraph_durable effects resolve {effect_id}`, and run again",
        effect_id,
    )


async def resolve(
    db: Database,
    serde: SerializerProtocol,
    row: EffectRow,
    finding: Finding | None,
    *,
    source: str,
    actor: str,
    reason: str | None,
    memory: Sequence[str] = (),
) -> bool:
    """Move an unknown effect to what was found out of it; None abandons it. Return whether it was this that moved it.

    That nothing happened is a definite failure, after which the vendor gets another key, only of an attempt that is
    known to have ended: one that may still go on could send under the old key, beside the next one under the new.

    What the effect is to remember of that is stored with it, or not at all.
    """
    if isinstance(finding, Happened):
        result = encode_result(serde, finding.result, f"the result of {row.tool!r}")
        outcome = Outcome("completed", source=source, result=result, output_hash=digest(result[1].hex()))
    elif isinstance(finding, NotHappened):
        outcome = Outcome("failed", source=source)
    else:
        outcome = Outcome("abandoned", source=source)

    if outcome.state == "failed" and ops.kept_memory(row.fence) in row.asked:
        memory = [*memory, ops.kept_memory(row.fence + 1)]  # its new owner's fence
    decision = f"decision {ops.new_effect_id()}"
    moved = await ops.move_effect(
        db,
        row.effect_id,
        outcome,
        origins=["unknown"],
        actor=actor,
        reason=reason,
        fence=row.fence,
        new_owner=outcome.state != "completed",
        memory=[decision, *memory],
    )
    if moved is not None:
        return True
    now = await ops.get_effect(db, row.effect_id)
    return now is not None and decision in now.asked  # it was moved, and the answer was lost: it was retried
