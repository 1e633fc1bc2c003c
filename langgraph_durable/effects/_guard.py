"""The protocol that keeps an effect to once. Written once, for both drivers, as the operations are.

    claim ─┬─ mine ────────────── the body runs, under a lease ── how it ended is recorded
           ├─ completed ───────── its outcome, again
           ├─ going on elsewhere  wait, then EffectInFlight
           ├─ unknown ─────────── idempotent? verify? a human? else EffectUnknown
           └─ a twin is unknown ─ the same, for the twin

The intent is committed before the body runs and the outcome after it, each in a transaction of its own; no connection
is held in between. A process that dies in between leaves a lease that ends, and an effect that is then unknown: never
one that is silently tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_durable import _effect_statements as sql
from langgraph_durable import _effects_ops as ops
from langgraph_durable._database import BlockingDatabase, Database
from langgraph_durable._effect_records import EffectRecord, State
from langgraph_durable._effects_ops import Call, EffectRow, Outcome
from langgraph_durable._metrics import measured
from langgraph_durable._sessions import Session
from langgraph_durable._ulids import show_ulid
from langgraph_durable.effects import _questions, _unknown
from langgraph_durable.effects._attempts import Attempt, owner, running
from langgraph_durable.effects._calls import Place, digest, sorted_by_depth
from langgraph_durable.effects._records import decode_result, encode_result, record_of
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.errors import (
    CheckpointCorrupted,
    EffectAbandoned,
    EffectConflict,
    EffectError,
    EffectForked,
    EffectInFlight,
    EffectSuperseded,
    UnserializableValue,
)

if TYPE_CHECKING:
    from langgraph_durable.effects._leases import LeaseKeeper
    from langgraph_durable.saver import DurableSaver

_logger = logging.getLogger("langgraph_durable")

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 0.5
_BARRIER_TIMEOUT = 15.0

_FAILS_FROM: dict[State, tuple[State, ...]] = {
    "suspended": ("claimed", "issued"),
    "failed": ("claimed", "issued", "unknown"),
    "unknown": ("issued",),
}
"""What an attempt that failed leaves -> the states that it may be found in by then."""


class Guard:
    """Keeps one call to once."""

    def __init__(
        self,
        db: Database,
        saver: DurableSaver,
        leases: LeaseKeeper,
        call: Call,
        policy: EffectPolicy,
        place: Place | None,
        *,
        named: bool,
        is_alone: bool = True,
    ) -> None:
        self.db = db
        self.saver = saver
        self.serde: SerializerProtocol = saver.serde
        self._metrics = saver._metrics
        self.leases = leases
        self.call = call
        self.policy = policy
        self.place = place
        self.named = named
        """Whether the caller gave the key, which no lost checkpoint can change."""
        self.is_alone = is_alone
        """Whether no other call runs in the same task: an answer that comes to the task is for this one."""
        self.resumes = policy.verify is None or policy.idempotent
        """Whether a body that waited for a human runs again unasked, though it may have sent something before."""
        self.problem: str | None = None
        """What is wrong with the last answer of a human, who is to be asked again."""

    # --- begin ---

    @measured("begin_effect")
    async def begin(self, state: State) -> Attempt:
        """Claim the effect, or find what became of it; wait, verify or ask where that is not known.

        Raises:
            EffectError: Neither can be done; the kinds say why.
        """
        while True:
            attempt = await self._begin(state)
            if attempt.replayed or not attempt.is_late or await self._holds(attempt):
                return attempt

    async def _begin(self, state: State) -> Attempt:
        if await self.db.in_transaction():
            raise EffectError(
                f"the effect {self.call.tool!r} would be recorded in your open transaction, and forgotten if that is "
                "taken back: give the saver a pool, or commit first; for rows of this database there is "
                "EffectLog.transaction"
            )
        if self.place is not None:
            self.place.execution.take_answers(_questions.is_addressed)  # no interrupt of the body's gets one
        # Most calls are new, or replays, which need nothing else: one read by key.
        known = await ops.find_completed(self.db, self.call)
        if (
            known is not None
            and known.input_hash == self.call.input_hash
            and self.policy.on_fork not in ("new", "ask")
        ):
            return await self.replay(known)
        await self._await_checkpoints()
        deadline = time.monotonic() + self.policy.wait.total_seconds()
        delay = _FIRST_WAIT
        while True:
            asked_at = time.monotonic()
            kind, row = await self._claim(state)
            if kind == sql.MINE:
                return Attempt(row, self.policy, replayed=False, asked_at=asked_at)
            if row.state == "failed" and _questions.was_refused(self, row):
                raise _questions.refusal(row)
            if row.state == "unknown" and await _questions.heed(self, row):
                continue
            if kind == sql.TWIN and row.state != "issued":
                if (attempt := await _unknown.settle_twin(self, row, deadline, state)) is not None:
                    return attempt
                continue
            if row.input_hash != self.call.input_hash:
                raise EffectConflict(
                    f"{self.what(row)} was recorded with other arguments: the same call must come with the same "
                    "arguments. Give the effect a key= that tells the two apart"
                )
            if row.state == "completed":
                if self._is_fork(row) and await self._is_anew(row):
                    self.call = replace(self.call, key=digest(row.key.hex(), self.call.task_id))
                    continue
                return await self.replay(row)
            if row.state == "abandoned":
                raise EffectAbandoned(f"{self.what(row)} was abandoned by a decision, and is not tried again")
            if row.state == "unknown":
                if (attempt := await _unknown.settle(self, row, deadline)) is not None:
                    return attempt
                continue
            if row.state == "suspended" and await self._doubt(row):
                continue
            if await ops.expire_effect(self.db, row, owner()):
                continue
            if time.monotonic() + delay > deadline:
                raise EffectInFlight(
                    f"{self.what(row)} still goes on at {row.owner}: wait for it, or for its lease to end, and run "
                    "again"
                )
            await self.db.sleep(delay)
            delay = min(delay * 2, _LONGEST_WAIT)

    async def _claim(self, state: State) -> tuple[int, EffectRow]:
        """Claim the effect; if cancelled meanwhile, however often, give it back: its body never ran."""
        claimed: list[tuple[int, EffectRow]] = []
        left = False

        async def claim() -> None:
            found = await ops.claim_effect(
                self.db,
                self.call,
                ops.new_effect_id(),
                state,
                owner(),
                self.policy.lease,
                heed_twins=not (self.named or self.policy.idempotent),
                resumes=self.resumes,
            )
            claimed.append(found)
            if left:
                await give_back()

        async def give_back() -> None:
            if claimed[0][0] == sql.MINE:
                attempt = Attempt(claimed[0][1], self.policy, replayed=False)
                await self._give_back(attempt, asyncio.CancelledError())

        try:
            await self.db.finish(claim())
        except asyncio.CancelledError:
            left = True
            if claimed:
                await self.db.finish(give_back())
            raise
        return claimed[0]

    async def _give_back(self, attempt: Attempt, exc: BaseException) -> None:
        """Record the end of an attempt whose body never ran."""
        attempt.row = attempt.row._replace(state="claimed")  # whatever is stored: nothing was sent
        await self.end_with(attempt, exc)

    async def _await_checkpoints(self) -> None:
        """Wait until the checkpoints that lead here are stored: the durability barrier.

        A crash would else lose the message that names the effect, and the model would ask for it anew.
        """
        place = self.place
        if place is None or self.named:
            return
        if place.durability == "exit":
            raise EffectError(
                f'the effect {self.call.tool!r} runs before its checkpoint is stored, with durability="exit": a crash '
                'would forget that it was asked for. Use durability "async" or "sync", or give the effect a key='
            )
        deadline, delay = time.monotonic() + _BARRIER_TIMEOUT, 0.001
        # A task's namespace names the checkpoint of the graph around it once more, which is not stored twice.
        graphs = {checkpoint_id: ns for ns, checkpoint_id in reversed(sorted_by_depth(place.checkpoints))}
        for checkpoint_id, ns in graphs.items():
            key = (place.thread_id, ns, checkpoint_id)
            while key not in self.saver._stored:
                self._require_unblocked(place.thread_id, ns)
                # The put may be on its way in another task or thread of this process.
                if delay > 0.02 and await ops.checkpoint_exists(self.db, *key):
                    break
                if time.monotonic() > deadline:
                    raise EffectError(
                        f"the effect {self.call.tool!r} was asked for by checkpoint {checkpoint_id!r} of thread "
                        f"{place.thread_id!r} (namespace {ns!r}), which is not stored: a crash would forget it. "
                        "Compile the subgraph with a checkpointer, or give the effect a key="
                    )
                await self.db.sleep(delay)
                delay = min(delay * 2, 0.25)

    def _require_unblocked(self, thread_id: str, ns: str) -> None:
        """Refuse to wait for a checkpoint on the event loop that puts it, which could not while it is blocked."""
        loop = self.saver._stored.coming.get((thread_id, ns))
        if loop is None or not isinstance(self.db, BlockingDatabase):
            return
        with suppress(RuntimeError):  # no loop runs here
            if asyncio.get_running_loop() is loop:
                raise EffectError(
                    f"the effect {self.call.tool!r} is sync, and was called on the event loop that has yet to store "
                    "the checkpoint which asks for it: make it async, call it by asyncio.to_thread, use "
                    'durability="sync", or give it a key='
                )

    async def _doubt(self, row: EffectRow) -> bool:
        """Declare an effect unknown whose body waited for a human: it may have sent something before it asked."""
        moved = await ops.move_effect(
            self.db,
            row.effect_id,
            Outcome("unknown", error="its body waited for a human after it had begun"),
            origins=["suspended"],
            actor=owner(),
            reason="runs again after it waited",
            fence=row.fence,
            memory=[ops.kept_memory(row.fence)],  # it did not fail, and the vendor must know it again
        )
        return moved is not None

    # --- replay ---

    async def replay(self, row: EffectRow, session: Session | None = None) -> Attempt:
        if self.policy.on_fork == "raise" and self._is_fork(row):
            raise EffectForked(
                f"{self.what(row)} was done on another branch of the thread's history, and its policy "
                'says on_fork="raise"'
            )
        if row.result_lost:
            raise EffectError(
                f"{self.what(row)} took place, but its result could not be stored ({row.error}), and it is not run "
                "again: make the tool return plain data"
            )
        attempt = Attempt(row, self.policy, replayed=True)
        encoded = await self.stored_result(row, session)
        if row.expired_at is not None:
            raise EffectError(f"the result of {self.what(row)} has expired: only that it took place is known")
        if encoded is None and (row.result_type is not None or row.result is not None):
            raise CheckpointCorrupted(
                f"cannot read the result of {self.what(row)}: it is stored in part. That it took place is known"
            )
        if encoded is not None:
            attempt.value, attempt.raises = decode_result(
                self.serde, encoded, f"the result of {self.what(row)}"
            )
        return attempt

    async def _is_anew(self, row: EffectRow) -> bool:
        """Tell whether another branch that comes to a finished effect gets one of its own."""
        if self.policy.on_fork == "ask":
            return await _questions.ask_about_fork(self, row) == "new"
        return self.policy.on_fork == "new"

    def _is_fork(self, row: EffectRow) -> bool:
        """Tell whether it was done for another checkpoint than the one this task was made from."""
        return self.place is not None and row.scope == "call" and row.task_id != self.place.task_id

    async def stored_result(self, row: EffectRow, session: Session | None = None) -> tuple[str, bytes] | None:
        if row.result_type is None:
            return None
        data = row.result
        if data is None:
            data = await ops.get_large_result(session or self.db, row.effect_id)
        return (row.result_type, data) if data is not None else None

    # --- end ---

    async def run(self, body: Callable[[], Awaitable[Any]]) -> Attempt:
        """Run a body as this effect, or find its outcome; what the body raises is recorded and raised."""
        try:
            with self.place.execution.one_running() if self.place is not None else nullcontext():
                return await self._run(body)
        except Exception as exc:
            if _questions.is_interrupt(exc):
                await self._let_others_end()
            raise

    async def _run(self, body: Callable[[], Awaitable[Any]]) -> Attempt:
        attempt = await self.begin("issued")
        if attempt.replayed:
            return attempt
        with self.leases.keep(attempt.row.effect_id, attempt.row.fence, self.policy.lease):
            try:
                with running(attempt):
                    attempt.value = await body()
                _require_ended(attempt)
            except BaseException as exc:
                await self.db.finish(self.end_with(attempt, exc))
                raise
            await self.db.finish(self.complete(attempt, attempt.value))
            return attempt

    async def _holds(self, attempt: Attempt) -> bool:
        """Renew a lease that may have ended before the body began; if it was lost, give the attempt back.

        Where the claim's answer came late, as to a loop that another tool blocks or a process that stood still, another
        worker may have asked the vendor meanwhile, been told that nothing happened, and paid.
        """
        row = attempt.row
        try:
            if await ops.renew_leases(self.db, [(row.effect_id, row.fence, self.policy.lease)]):
                return True
        except BaseException as exc:
            await self.db.finish(self._give_back(attempt, exc))
            raise
        await self._give_back(attempt, EffectError("its lease ended before it began"))
        return False

    async def _let_others_end(self) -> None:
        """Before the task ends to wait for a human, let the calls beside this one end, or come to their questions.

        ToolNode leaves them behind when it runs async tools, and LangGraph forgets the answers that they took.
        """
        if self.is_alone or self.place is None:
            return
        deadline = time.monotonic() + self.policy.wait.total_seconds()
        while self.place.execution.running and time.monotonic() < deadline:
            await self.db.sleep(_FIRST_WAIT)

    async def issue(self, attempt: Attempt) -> None:
        """Record that what follows may reach the outside world; if that is recorded, make sure that it is still ours.

        Raises:
            EffectSuperseded: Another owner took it over.
        """
        row = attempt.row
        if row.state == "issued" and await ops.renew_leases(
            self.db, [(row.effect_id, row.fence, self.policy.lease)]
        ):
            return
        await self.report(
            attempt, Outcome("issued"), origins=["claimed"], reason=None, lease=self.policy.lease
        )

    async def complete(self, attempt: Attempt, value: Any, *, raised: bool = False) -> None:
        """Record that the effect took place.

        Raises:
            EffectSuperseded: Another owner took it over; what is reported here is in the history only.
        """
        outcome = self.outcome_of(value, raised=raised)
        if outcome.result_lost:
            _logger.warning("effect %s: %s", show_ulid(attempt.row.effect_id), outcome.error)
        await self.report(attempt, outcome, origins=["claimed", "issued", "unknown"], reason=None)

    def outcome_of(self, value: Any, *, raised: bool = False) -> Outcome:
        """Return how a body ended that gave a value: completed, even if the value cannot be stored."""
        try:
            result = encode_result(self.serde, value, f"the result of {self.call.tool!r}", raised=raised)
        except UnserializableValue as exc:
            return Outcome("completed", source="executed", result_lost=True, error=str(exc)[:2000])
        return Outcome("completed", source="executed", result=result, output_hash=digest(result[1].hex()))

    async def end_with(self, attempt: Attempt, exc: BaseException, *, by_hand: bool = False) -> None:
        """Record what an exception means of the effect: that it failed, that it waits, or that nobody knows.

        By hand, code says itself when it may have sent something: if it waits for a human after that, it is not run
        again for the answer.
        """
        if (command := _questions.raised_command(exc)) is not None:
            await self.complete(attempt, command, raised=True)
            return
        error = self._describe(exc)
        interrupted = _questions.is_interrupt(exc)
        begun = attempt.row.state != "claimed"
        # A refused connection may be the body's second one, or its client's second try: a verify can tell.
        refused = _was_refused(exc)
        not_sent = not begun or (refused and self.policy.verify is None)
        if attempt.came_from == "unknown":
            # What this attempt did not do tells nothing of the one before, whose key the vendor may have.
            state: State = "unknown"
        elif (interrupted and not (by_hand and begun)) or (not_sent and attempt.came_from == "suspended"):
            # Nor of what was sent before the tool waited: the vendor must know that by its key again.
            state = "suspended"
        elif not_sent or isinstance(exc, self.policy.failed_on):
            state = "failed"
        else:
            state = "unknown"
        waits = interrupted and state == "suspended"
        outcome = Outcome(state, error=None if waits else error)
        # What was cancelled may go on where it cannot be seen, as in a thread, and send under the vendor's old key.
        keeps_key = not_sent or refused or interrupted or not isinstance(exc, Exception)
        memory = [ops.kept_memory(attempt.row.fence)] if keeps_key and state in ("failed", "unknown") else []
        try:
            await self.report(attempt, outcome, origins=_FAILS_FROM[state], reason=error, memory=memory)
        except Exception as failure:
            # The body's exception is what the caller must see; the lease ends, and the effect is unknown then.
            _logger.warning(
                "how effect %s ended could not be recorded: %s", show_ulid(attempt.row.effect_id), failure
            )

    @measured("record_effect")
    async def report(
        self,
        attempt: Attempt,
        outcome: Outcome,
        *,
        origins: Sequence[State],
        reason: str | None,
        lease: timedelta = timedelta(0),
        memory: Sequence[str] = (),
    ) -> None:
        row = attempt.row
        moved = await ops.move_effect(
            self.db,
            row.effect_id,
            outcome,
            origins=origins,
            actor=owner(),
            reason=reason,
            fence=row.fence,
            lease=lease,
            memory=memory,
        )
        if moved is not None:
            attempt.row = moved
            return
        now = await ops.get_effect(self.db, row.effect_id)
        ended = (row.fence, outcome.state, outcome.source)
        if now is not None and (now.fence, now.state, now.source or outcome.source) == ended:
            attempt.row = now  # the statement ran, and its answer was lost: it was retried
            return
        said = f"refused: owner of fence {row.fence} reported {outcome.state}"
        await ops.record_refusal(self.db, row.effect_id, row.fence, owner(), said)
        raise EffectSuperseded(
            f"{self.what(row)} ended here as {outcome.state}, but it was taken over meanwhile, and is "
            f"{now.state if now else 'gone'}: see EffectLog.history({show_ulid(row.effect_id)!r})"
        )

    # --- showing ---

    def record(self, row: EffectRow) -> EffectRecord:
        """Return an effect as its verify and the log's readers see it."""
        return record_of(self.serde, row)

    def _describe(self, exc: BaseException) -> str:
        if isinstance(self.serde, EncryptedSerializer):  # the text may tell arguments, and is stored as it is
            return type(exc).__name__
        return f"{type(exc).__name__}: {exc}"[:2000]

    def what(self, row: EffectRow) -> str:
        thread = f" of thread {row.thread_id!r}" if row.thread_id is not None else ""
        return f"effect {show_ulid(row.effect_id)} ({row.tool!r}{thread})"


def _require_ended(attempt: Attempt) -> None:
    """Refuse a value whose own body has yet to run, as of a plain function around an async one: it may still fail."""
    value = attempt.value
    if not (isawaitable(value) or isgenerator(value) or isasyncgen(value)):
        return
    if iscoroutine(value):
        value.close()
    raise EffectError(
        f"{attempt.row.tool!r} returned a {type(value).__name__}, whose body runs after it returned: make it return "
        "what it did, as an `async def` if it awaits"
    )


def _was_refused(exc: BaseException) -> bool:
    """Tell whether an exception comes of a connection that was refused: nothing was sent."""
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ConnectionRefusedError):
            return True
        seen.add(id(cause))
        # Not by __context__: an error raised while a refused connection was handled tells of what came next.
        cause = cause.__cause__ or next((a for a in cause.args if isinstance(a, BaseException)), None)
    return False
