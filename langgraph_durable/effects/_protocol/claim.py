"""The protocol that runs an effect at most once. Written once, for both drivers, as the operations are.

    claim ─┬─ claimed ───────────── the body runs under a lease, and its end is recorded
           ├─ completed ─────────── its outcome is replayed
           ├─ in flight elsewhere ─ wait, then EffectInFlightError
           ├─ unknown ───────────── idempotent? verify? a human? else EffectUnknownError
           └─ duplicate unknown ─── the same, for the duplicate

The intent is committed before the body runs and the outcome after it, in separate transactions; no connection is held
in between. A process that dies in between leaves a lease that ends, and then an unknown effect, never one that is
silently retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable.effects._protocol import effect_errors, questions, recovery
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, describe, owner
from langgraph_durable.effects._protocol.barrier import await_stored, require_free_loop
from langgraph_durable.effects._protocol.lineage import Related, needs_relation, record_found
from langgraph_durable.effects._protocol.matching import find_match, replay_match, take_candidate
from langgraph_durable.effects._protocol.results import replay
from langgraph_durable.effects._protocol.run import is_interrupt, record_exception, run_body
from langgraph_durable.effects._protocol.stranded import require_none_stranded
from langgraph_durable.effects._protocol.suspended import declare_unknown
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import Claim, ClaimKind, EffectRow, Relation
from langgraph_durable.effects.records import State
from langgraph_durable.errors import EffectError, EffectInFlightError

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 0.5
_TRANSACTION_LEASE = timedelta(days=1)
_LATE_CLAIMS = 100
"""How often a call claims after its wait has passed, because others keep moving the effect."""


async def run_effect(call: EffectCall, body: Callable[[], Awaitable[Any]]) -> Attempt:
    """Run a body as the call's effect, or find its outcome; what the body raises is recorded and raised."""
    try:
        with call.place.execution.one_running() if call.place is not None else nullcontext():
            attempt = await begin_effect(call, "issued")
            if not attempt.replayed:
                await run_body(call, attempt, body)
            return attempt
    except Exception as exc:
        if is_interrupt(exc):
            await _let_others_end(call)
        raise


async def _let_others_end(call: EffectCall) -> None:
    """Before the task ends to wait for a human, let the calls beside this one end, or ask their questions.

    ToolNode abandons them when it runs async tools, and LangGraph forgets the answers that they took.
    """
    if call.is_alone or call.place is None:
        return
    deadline = time.monotonic() + call.policy.wait_timeout.total_seconds()
    while call.place.execution.running and time.monotonic() < deadline:
        await call.db.sleep(_FIRST_WAIT)


@measured("begin_effect")
async def begin_effect(call: EffectCall, state: State) -> Attempt:
    """Claim the effect, or find what became of it; wait, verify or ask if that is not known.

    Raises:
        EffectError: That is not possible; its subclasses say why.
    """
    await _require_no_transaction(call)
    require_free_loop(call)
    if call.place is not None:
        call.place.execution.take_answers(questions.is_addressed)  # no interrupt of the body may get one
    # Replays need no more than one read by key. If the call is probably new, the claim finds what there is.
    known = await store.find_completed(call.db, call.request) if _may_be_replay(call) else None
    is_foreign = known is not None and needs_relation(call, known)
    if known is not None and not is_foreign and known.input_hash == call.request.input_hash:
        await record_found(call, known)
        return await replay(call, known)
    if known is None:
        await require_none_stranded(call)
    await await_stored(call)
    if is_foreign and (match := await find_match(call)) is not None and match.row.state == "completed":
        _require_same_arguments(call, match.row)
        if (replayed := await replay_match(call, match)) is not None:
            return replayed
    lost = 0
    while True:
        attempt = await _claim_or_find(call, state)
        if attempt.replayed or not attempt.is_late or await _renew(call, attempt):
            return attempt
        lost += 1
        if lost == _LATE_CLAIMS:
            raise EffectInFlightError(
                f"the lease of {describe(attempt.row)} ended {lost} times before its body could begin. The lease is "
                f"{call.policy.lease}. Give its policy a longer lease="
            )


def _may_be_replay(call: EffectCall) -> bool:
    return call.place is None or call.named or call.place.runs_again or call.request.outer_id is not None


async def begin_in_transaction(call: EffectCall, session: Session) -> Attempt:
    """Claim the effect in an open transaction, or find it completed.

    Raises:
        EffectConflictError: The key was used with other arguments.
        EffectError: The effect was begun outside a transaction and is not completed.
    """
    claim = Claim(
        store.new_effect_id(),
        "issued",
        owner(),
        _TRANSACTION_LEASE,
        check_duplicates=False,
        resumes=call.resumes,
    )
    kind, row = await store.claim_effect(session, call.request, claim)
    if kind is ClaimKind.CLAIMED:
        return Attempt(row, call.policy, replayed=False)
    _require_same_arguments(call, row)
    if row.state != "completed":
        raise EffectError(
            f"{describe(row)} was begun outside a transaction and is {row.state}. Use another key, or resolve it "
            "first"
        )
    return await replay(call, row, session)


async def _require_no_transaction(call: EffectCall) -> None:
    if await call.db.in_transaction():
        raise EffectError(
            f"the effect {call.request.tool!r} would be recorded in your open transaction, and lost if that is rolled "
            "back. Give the saver a pool, or commit first; for rows of this database, use saver.effects.transaction"
        )


# --- claim ---


class _Wait:
    """The bounded wait of one call for other attempts."""

    def __init__(self, limit: timedelta) -> None:
        self.deadline = time.monotonic() + limit.total_seconds()
        self._delay = _FIRST_WAIT

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    async def sleep(self, db: Database) -> bool:
        """Wait, longer each time; return False if that would end after the deadline."""
        if time.monotonic() + self._delay > self.deadline:
            return False
        await db.sleep(self._delay)
        self._delay = min(self._delay * 2, _LONGEST_WAIT)
        return True


async def _claim_or_find(call: EffectCall, state: State) -> Attempt:
    """Claim the effect, or follow its moves until it is completed or an error says why it cannot be claimed."""
    wait, late, may_be_new = _Wait(call.policy.wait_timeout), 0, True
    while True:
        claimed_at = time.monotonic()
        kind, row = await _claim(call, state, may_be_new=may_be_new)
        may_be_new = False
        if kind is ClaimKind.CLAIMED:
            return Attempt(row, call.policy, replayed=False, claimed_at=claimed_at)
        if row.state == "failed" and questions.was_refused(call, row):
            raise effect_errors.declared_failed(row)
        attempt: Attempt | None = None
        relation = Relation.OWN
        if kind is ClaimKind.CANDIDATE:
            if (attempt := await call.db.finish(take_candidate(call))) is not None:
                return attempt
            continue
        if kind is ClaimKind.EXISTING and needs_relation(call, row):
            if (match := await find_match(call)) is None:
                continue
            row, relation = match
        if row.state == "unknown" and await questions.apply_answers(call, row):
            pass  # it was moved
        elif kind is ClaimKind.DUPLICATE and row.state != "issued":
            attempt = await recovery.check_duplicate(call, row, wait.deadline)
        else:
            _require_same_arguments(call, row)
            attempt = await _follow(call, Related(row, relation), wait)
        if attempt is not None:
            return attempt
        late += wait.is_over
        if late == _LATE_CLAIMS:
            raise EffectInFlightError(
                f"{describe(row)} was moved by others {late} times after its wait_timeout "
                f"({call.policy.wait_timeout}) had passed. Its state is {row.state}. Run again"
            )


async def _follow(call: EffectCall, match: Related, wait: _Wait) -> Attempt | None:
    """Do what the state of an existing effect requires; return None if it has to be claimed again."""
    row = match.row
    if row.state == "completed":
        return await replay_match(call, match)
    if row.state == "abandoned":
        raise effect_errors.abandoned(row)
    if row.state == "unknown":
        return await recovery.recover(call, row, wait.deadline)
    if row.state == "suspended" and await declare_unknown(call, row):
        return None
    if await store.expire_effect(call.db, row, owner()):
        return None
    if not await wait.sleep(call.db):
        raise effect_errors.in_flight(row)
    return None


async def _claim(call: EffectCall, state: State, *, may_be_new: bool) -> tuple[ClaimKind, EffectRow]:
    """Claim the effect; if cancelled meanwhile, however often, give it back, because its body never ran."""
    claim = Claim(
        store.new_effect_id(),
        state,
        owner(),
        call.policy.lease,
        check_duplicates=not (call.named or call.policy.idempotent),
        resumes=call.resumes,
        check_candidates=call.takes_candidates and _may_have_candidates(call),
        may_be_new=may_be_new,
    )
    found: list[tuple[ClaimKind, EffectRow]] = []
    cancelled = False

    async def send() -> None:
        found.append(await store.claim_effect(call.db, call.request, claim))
        if cancelled:
            await give_back()

    async def give_back() -> None:
        kind, row = found[0]
        if kind is ClaimKind.CLAIMED:
            attempt = Attempt(row, call.policy, replayed=False)
            await _give_back(call, attempt, asyncio.CancelledError())

    try:
        await call.db.finish(send())
    except asyncio.CancelledError:
        cancelled = True
        if found:
            await call.db.finish(give_back())
        raise
    return found[0]


def _may_have_candidates(call: EffectCall) -> bool:
    """Return whether the call may ask for what an effect under another key did."""
    return call.place is not None and call.request.scope == "call"


async def _give_back(call: EffectCall, attempt: Attempt, exc: BaseException) -> None:
    """Record the end of an attempt whose body never ran."""
    attempt.row = attempt.row._replace(state="claimed")  # even if it is stored as issued: nothing was sent
    await record_exception(call, attempt, exc)


async def _renew(call: EffectCall, attempt: Attempt) -> bool:
    """Renew a lease that may have ended before the body began; if it was lost, give the attempt back.

    The claim's answer may be late, for example if another tool blocks the loop. Meanwhile another worker may have asked
    the vendor, heard that nothing happened, and paid.
    """
    row = attempt.row
    try:
        if await store.renew_leases(call.db, [(row.effect_id, row.fence, call.policy.lease)]):
            return True
    except BaseException as exc:
        await call.db.finish(_give_back(call, attempt, exc))
        raise
    await _give_back(call, attempt, EffectError("its lease ended before it began"))
    return False


def _require_same_arguments(call: EffectCall, row: EffectRow) -> None:
    if row.input_hash != call.request.input_hash:
        raise effect_errors.conflict(row)
