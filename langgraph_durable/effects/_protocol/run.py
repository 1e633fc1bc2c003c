"""The body of an effect, and the record of how it ended.

The end is committed in its own transaction, after the body. No connection is held while the body runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable.effects._protocol import effect_errors
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, owner, running
from langgraph_durable.effects._protocol.body import BodyTimeoutError, require_ended, run_in_time
from langgraph_durable.effects._protocol.lineage import record_found
from langgraph_durable.effects._protocol.results import replay
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.encoding import encode_result, hash_result
from langgraph_durable.effects._storage.rows import EffectRow, Note, NoteKind, Outcome, Transition
from langgraph_durable.effects.policy import Finding, Happened, NotHappened
from langgraph_durable.effects.records import State
from langgraph_durable.errors import EffectError, EffectSupersededError, UnserializableValueError

_logger = logging.getLogger("langgraph_durable")

_LONGEST_ERROR = 2000

_FAILS_FROM: dict[State, tuple[State, ...]] = {
    "suspended": ("claimed", "issued"),
    "failed": ("claimed", "issued", "unknown"),
    "unknown": ("issued",),
}
"""State that a failed attempt moves to -> states that the effect may have by then."""


async def run_body(call: EffectCall, attempt: Attempt, body: Callable[[], Awaitable[Any]]) -> None:
    """Run the body of a claimed effect under its lease, and record how it ended; its exception is raised."""
    row, policy = attempt.row, call.policy
    with call.leases.keep(row.effect_id, row.fence, policy.lease, policy.timeout):
        try:
            with running(attempt):
                attempt.value = await run_in_time(call, body)
            require_ended(attempt)
        except BodyTimeoutError as exc:
            await call.db.finish(_record_timeout(call, attempt))
            raise effect_errors.timed_out(attempt.row, exc.timeout) from exc.__cause__
        except BaseException as exc:
            await call.db.finish(record_exception(call, attempt, exc))
            raise
        await call.db.finish(complete(call, attempt, attempt.value))


# --- the end of an attempt ---


async def issue(call: EffectCall, attempt: Attempt) -> None:
    """Record that what follows may reach the outside world; if that is recorded, check that the lease is still ours.

    Raises:
        EffectSupersededError: Another owner took the effect over.
    """
    row = attempt.row
    if row.state == "issued" and await store.renew_leases(
        call.db, [(row.effect_id, row.fence, call.policy.lease)]
    ):
        return
    transition = Transition(Outcome("issued"), ["claimed"], owner(), fence=row.fence, lease=call.policy.lease)
    await report(call, attempt, transition)


async def complete(call: EffectCall, attempt: Attempt, value: Any, *, raised: bool = False) -> None:
    """Record that the effect took place.

    Raises:
        EffectSupersededError: Another owner took the effect over; the report is only in the history.
    """
    outcome = _completed(call, value, raised=raised)
    if outcome.result_lost:
        _logger.warning("effect %s: %s", format_ulid(attempt.row.effect_id), outcome.error)
    transition = Transition(outcome, ["claimed", "issued", "unknown"], owner(), fence=attempt.row.fence)
    await report(call, attempt, transition)
    if attempt.row.source in (
        "verified",
        "human",
    ):  # found out meanwhile: every call gets the recorded result
        await record_found(call, attempt.row)
        found = await replay(call, attempt.row)
        attempt.value, attempt.raises, attempt.replayed = found.value, found.raises, True


async def complete_in_transaction(call: EffectCall, session: Session, attempt: Attempt) -> None:
    """Record in an open transaction that the effect took place in it."""
    transition = Transition(
        _completed(call, attempt.value),
        ["issued"],
        owner(),
        reason="in one transaction",
        fence=attempt.row.fence,
    )
    await store.move_effect(session, attempt.row.effect_id, transition)


def _completed(call: EffectCall, value: Any, *, raised: bool = False) -> Outcome:
    """Return the outcome of a body that returned: completed, even if its value cannot be stored."""
    what = f"the result of {call.request.tool!r}"
    try:
        result = encode_result(call.serde, value, what, raised=raised)
    except UnserializableValueError as exc:
        return Outcome("completed", source="executed", result_lost=True, error=str(exc)[:_LONGEST_ERROR])
    return Outcome("completed", source="executed", result=result, output_hash=hash_result(result))


async def fail(call: EffectCall, attempt: Attempt, error: str) -> None:
    """Record that the effect definitely did not take place.

    Raises:
        EffectSupersededError: Another owner took the effect over; the report is only in the history.
    """
    outcome = Outcome("failed", error=error)
    transition = Transition(outcome, _FAILS_FROM["failed"], owner(), reason=error, fence=attempt.row.fence)
    await report(call, attempt, transition)


async def record_exception(
    call: EffectCall, attempt: Attempt, exc: BaseException, *, by_hand: bool = False
) -> None:
    """Record what an exception says about the effect: that it failed, is suspended, or is unknown.

    Args:
        call: The call.
        attempt: Its attempt, which ends by the exception.
        exc: What the body raised.
        by_hand: Whether the code calls `issue` itself. If it waits for a human after that, it is not run again for
            the answer.
    """
    if (command := raised_command(exc)) is not None:
        await complete(call, attempt, command, raised=True)
        return
    error = _describe_exception(call, exc)
    state, keeps_key = _state_after(call, attempt, exc, by_hand=by_hand)
    waits = is_interrupt(exc) and state == "suspended"
    transition = Transition(
        Outcome(state, error=None if waits else error),
        _FAILS_FROM[state],
        owner(),
        reason=error,
        fence=attempt.row.fence,
        keeps_key=keeps_key,
    )
    await _try_to_report(call, attempt, transition)


async def _record_timeout(call: EffectCall, attempt: Attempt) -> None:
    """Record that a body was cancelled because it took too long, whatever the policy says of its exceptions."""
    error = f"did not end within its timeout of {call.policy.timeout}"
    outcome, fence = Outcome("unknown", error=error), attempt.row.fence
    transition = Transition(outcome, ["issued"], owner(), reason=error, fence=fence, keeps_key=True)
    await _try_to_report(call, attempt, transition)


async def _try_to_report(call: EffectCall, attempt: Attempt, transition: Transition) -> None:
    """Report the end of an attempt; log it if that fails, because the caller must get the body's exception."""
    try:
        await report(call, attempt, transition)
    except Exception as failure:
        # The lease ends, and the effect is unknown then.
        _logger.warning(
            "could not record the end of effect %s: %s", format_ulid(attempt.row.effect_id), failure
        )


def _state_after(
    call: EffectCall, attempt: Attempt, exc: BaseException, *, by_hand: bool
) -> tuple[State, bool]:
    """Return the state that an exception leaves, and whether a failure keeps the idempotency key."""
    interrupted = is_interrupt(exc)
    begun = attempt.row.state != "claimed"
    # A refused connection may be the body's second one, or its client's second attempt: a verify can find out.
    refused = _was_refused(exc)
    not_sent = not begun or (refused and call.policy.verify is None)
    if attempt.came_from == "unknown":
        # This attempt says nothing about the one before, whose key the vendor may have.
        state: State = "unknown"
    elif (interrupted and not (by_hand and begun)) or (not_sent and attempt.came_from == "suspended"):
        # Nor about what was sent before the tool waited, which the vendor must recognize by its key.
        state = "suspended"
    elif not_sent or isinstance(exc, call.policy.failed_on):
        state = "failed"
    else:
        state = "unknown"
    # A cancelled body may continue unseen, for example in a thread, and send under the old key.
    keeps_key = not_sent or refused or interrupted or not isinstance(exc, Exception)
    return state, keeps_key and state in ("failed", "unknown")


def _describe_exception(call: EffectCall, exc: BaseException) -> str:
    if isinstance(
        call.serde, EncryptedSerializer
    ):  # the text may quote arguments, and is stored in plain text
        return type(exc).__name__
    return f"{type(exc).__name__}: {effect_errors.safe_text(exc)}"[:_LONGEST_ERROR]


def _was_refused(exc: BaseException) -> bool:
    """Return whether an exception comes from a refused connection, over which nothing was sent."""
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ConnectionRefusedError):
            return True
        seen.add(id(cause))
        # Not __context__: an error raised while a refused connection was handled is about what came next.
        args = cause.args if isinstance(cause.args, tuple) else ()  # a subclass may set it to anything
        cause = cause.__cause__ or next((a for a in args if isinstance(a, BaseException)), None)
    return False


@measured("record_effect")
async def report(call: EffectCall, attempt: Attempt, transition: Transition) -> None:
    """Move an effect as its owner, and update the attempt.

    Raises:
        EffectSupersededError: Another owner took the effect over; the report is only in the history.
    """
    row, outcome = attempt.row, transition.outcome
    moved = await store.move_effect(call.db, row.effect_id, transition, row=row)
    if moved is not None:
        attempt.row = moved
        return
    now = await store.get_effect(call.db, row.effect_id)
    reported = (row.fence, outcome.state, outcome.source)
    if now is not None and (now.fence, now.state, now.source or outcome.source) == reported:
        attempt.row = now  # the statement ran, its answer was lost, and it was retried
        return
    if (
        now is not None
        and (now.state, now.attempts) == ("completed", row.attempts)
        and outcome.state == "completed"
    ):
        # This owner had stopped, and others found out that its attempt took place.
        agrees = f"owner of fence {row.fence} reported {outcome.state}, too"
        await store.record_refusal(call.db, row.effect_id, row.fence, owner(), agrees)
        attempt.row = now
        return
    refusal = f"refused: owner of fence {row.fence} reported {outcome.state}"
    await store.record_refusal(call.db, row.effect_id, row.fence, owner(), refusal)
    raise effect_errors.superseded(row, outcome.state, now)


# --- decisions ---


@dataclass(frozen=True, slots=True)
class Decision:
    """What was found out about an unknown effect, and by whom.

    Attributes:
        finding: Whether it took place; None abandons it.
        source: How that is known: "verified" or "human".
        actor: Who decides, for the audit log.
        reason: Why, for the audit log.
        notes: To add to the effect's notes together with the move, or not at all.
    """

    finding: Finding | None
    source: str
    actor: str
    reason: str | None
    notes: Sequence[Note] = ()


async def resolve(db: Database, serde: SerializerProtocol, row: EffectRow, decision: Decision) -> bool:
    """Move an unknown effect, or a claimed one by force, to what was decided; return whether this decision moved it.

    NotHappened is a definite failure, after which the vendor gets another key, only if the attempt is known to have
    ended. An attempt that may still run could send under the old key, beside the next one under the new key.

    Round trips: 1; 2 if it was not moved. Transaction: its own.
    """
    finding = decision.finding
    if isinstance(finding, Happened):
        result = encode_result(serde, finding.result, f"the result of {row.tool!r}")
        outcome = Outcome("completed", source=decision.source, result=result, output_hash=hash_result(result))
    else:
        failed = isinstance(finding, NotHappened)
        outcome = Outcome("failed" if failed else "abandoned", source=decision.source)
    made = Note(NoteKind.DECISION.value, token=str(store.new_effect_id()))
    transition = Transition(
        outcome,
        origins=[row.state],
        actor=decision.actor,
        reason=decision.reason,
        fence=row.fence,
        new_owner=outcome.state != "completed" or row.state == "claimed",
        keeps_key=outcome.state == "failed" and row.keeps_key,
        notes=[made, *decision.notes],
    )
    if await store.move_effect(db, row.effect_id, transition) is not None:
        return True
    now = await store.get_effect(db, row.effect_id)
    return now is not None and made in now.notes  # it was moved, the answer was lost, and it was retried


# --- what LangGraph raises through a body ---


def is_interrupt(exc: BaseException) -> bool:
    """Return whether an exception is LangGraph's way to wait for a human; it is a subclass of Exception."""
    from langgraph.errors import GraphInterrupt

    return isinstance(exc, GraphInterrupt)


def raised_command(exc: BaseException) -> Any:
    """Return the Command that a body raised for its parent graph: the tool's result, not its failure."""
    from langgraph.errors import ParentCommand

    return exc.args[0] if isinstance(exc, ParentCommand) else None


async def record_unreported(call: EffectCall, attempt: Attempt, exc: BaseException | None) -> None:
    """Record the outcome of a block that ended without reporting it."""
    if attempt.replayed or attempt.row.state not in ("claimed", "issued"):
        return
    if isinstance(exc, EffectSupersededError) and exc.effect_id == format_ulid(attempt.row.effect_id):
        return  # its report was refused already
    left = exc or EffectError("left without complete() or fail()")
    await record_exception(call, attempt, left, by_hand=True)
