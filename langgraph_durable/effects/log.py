"""The effect log: what happened outside, kept beside the checkpoints."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from psycopg import AsyncCursor, Cursor

from langgraph_durable import _effect_statements as sql
from langgraph_durable import _effects_ops as ops
from langgraph_durable._config import checkpoint_ref, require_limit, require_text
from langgraph_durable._database import Database, run_now
from langgraph_durable._effect_records import TRANSITIONS, EffectEvent, EffectRecord, State
from langgraph_durable._effects_ops import Call, EffectRow, Outcome
from langgraph_durable._ulids import parse_ulid, show_ulid
from langgraph_durable.effects._attempts import Attempt, current_attempt, owner, running
from langgraph_durable.effects._calls import Place, find_place, named_key
from langgraph_durable.effects._guard import Guard
from langgraph_durable.effects._leases import Lease, LeaseKeeper, on_loop
from langgraph_durable.effects._records import call_of, event_of, record_of
from langgraph_durable.effects._unknown import resolve
from langgraph_durable.effects.policy import EffectPolicy, Finding, Happened, NotHappened
from langgraph_durable.errors import CheckpointCorrupted, EffectConflict, EffectError, InvalidConfig

if TYPE_CHECKING:
    from langgraph_durable.effects.wrapper import ToolWrapper
    from langgraph_durable.saver import DurableSaver

_DEFAULT = EffectPolicy()


class EffectHandle:
    """An effect, to the code that carries it out."""

    def __init__(self, guard: Guard | None, attempt: Attempt) -> None:
        self._guard = guard
        self._attempt = attempt

    @property
    def effect_id(self) -> str:
        """Its ULID."""
        return show_ulid(self._attempt.row.effect_id)

    @property
    def vendor_key(self) -> str:
        """The idempotency key to send to the vendor: it changes only after an attempt definitely failed."""
        return self._attempt.vendor_key

    @property
    def replayed(self) -> bool:
        """Whether it took place before: do not do it again; `result` is what came of it."""
        return self._attempt.replayed

    @property
    def result(self) -> Any:
        """What came of it, if it was completed."""
        return self._attempt.value

    @property
    def attempts(self) -> int:
        """How many there were, with this one."""
        return self._attempt.row.attempts

    @property
    def first_attempt_at(self) -> datetime:
        """When the first one began, by the server's clock."""
        return self._attempt.row.first_attempt_at

    @property
    def source(self) -> str | None:
        """How the result is known: "executed", "verified" or "human"."""
        return self._attempt.row.source

    @property
    def state(self) -> State:
        """The effect's state, as far as this code knows."""
        return self._attempt.row.state

    def _check(self) -> Guard:
        if self._guard is None:
            raise EffectError("this effect's end is recorded by whoever runs it, when the body ends")
        if self.replayed:
            raise EffectError(
                f"effect {self.effect_id} took place before: look at `replayed`, and use `result` instead of doing it"
            )
        return self._guard

    async def _issue(self) -> None:
        await self._check().issue(self._attempt)

    async def _complete(self, result: Any) -> None:
        await self._check().complete(self._attempt, result)
        self._attempt.value = result

    async def _fail(self, error: str) -> None:
        guard = self._check()
        outcome = Outcome("failed", error=error)
        await guard.report(self._attempt, outcome, origins=["claimed", "issued", "unknown"], reason=error)


class Effect(EffectHandle):
    """An effect in the hands of sync code.

    Its methods raise EffectSuperseded if another owner took it over, and EffectError if it is `replayed`.
    """

    def issue(self) -> None:
        """Record that what follows may reach the outside world, if it was begun with issued=False.

        Of one that is issued already, this only makes sure that no other owner has taken it over.
        """
        run_now(self._issue())

    def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        run_now(self._complete(result))

    def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        run_now(self._fail(error))


class AsyncEffect(EffectHandle):
    """An effect in the hands of async code; see `Effect`."""

    async def issue(self) -> None:
        """Record that what follows may reach the outside world, if it was begun with issued=False.

        Of one that is issued already, this only makes sure that no other owner has taken it over.
        """
        await self._issue()

    async def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        await self._complete(result)

    async def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        await self._fail(error)


def current_effect() -> EffectHandle:
    """Return the effect whose body runs here.

    Raises:
        EffectError: No effect's body runs here.
    """
    attempt = current_attempt()
    if attempt is None:
        raise EffectError(
            "no effect runs here: call current_effect() inside a function decorated with @effect"
        )
    return EffectHandle(None, attempt)


class EffectLog:
    """The effects of one saver's database: makes them happen once, shows them, takes decisions on them."""

    def __init__(self, saver: DurableSaver) -> None:
        """Use `EffectLog.from_saver`, which gives every caller of a saver the same log."""
        self._saver = saver
        self._leases = LeaseKeeper(self._renew)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._replays: Counter[str] = Counter()

    @classmethod
    def from_saver(cls, saver: DurableSaver) -> EffectLog:
        """Return the log beside a saver's checkpoints; the same one each time.

        Args:
            saver: The saver, or a proxy in front of it, such as the checkpointer that the Agent Server gives a graph.

        Raises:
            InvalidConfig: It is something else.
        """
        from langgraph_durable.saver import require_saver

        saver = require_saver(saver, "an effect log")
        with _making:
            log: EffectLog | None = saver._shared.get("effects")
            if log is None:
                log = saver._shared["effects"] = cls(saver)
        return log

    def _renew(self, leases: list[Lease]) -> None:
        if self._saver._blocking is not None:
            run_now(ops.renew_leases(self._saver._db, leases))
        elif self._loop is not None:
            on_loop(self._loop, lambda held: ops.renew_leases(self._saver._adb, held))(leases)

    def _guard(
        self,
        db: Database,
        call: Call,
        policy: EffectPolicy,
        place: Place | None,
        *,
        named: bool,
        is_alone: bool = True,
    ) -> Guard:
        if self._saver._blocking is None:
            self._loop = asyncio.get_running_loop()
        return Guard(db, self._saver, self._leases, call, policy, place, named=named, is_alone=is_alone)

    def _named(self, name: str, key: str, args: Any) -> tuple[Call, Place | None]:
        if not require_text(name, "name"):
            raise InvalidConfig("name= must say what is done, such as 'charge', got ''")
        if not isinstance(key, str) or not key:
            raise EffectError(f"key= must be text that names the effect among all of {name!r}, got {key!r}")
        place = find_place()
        return call_of(self._saver.serde, name, "key", named_key(name, key), args, place), place

    async def _run(self, guard: Guard, body: Callable[[], Awaitable[Any]]) -> Attempt:
        attempt = await guard.run(body)
        if attempt.replayed:
            self._note_replay(guard.place)
        return attempt

    def _note_replay(self, place: Place | None) -> None:
        self._replays[(place.run_id if place is not None else None) or ""] += 1

    def replays(self, run_id: str | None = None) -> int:
        """Return how many effects were replayed in this process, in one run or in all."""
        return self._replays[run_id] if run_id is not None else self._replays.total()

    # --- tools that one does not own ---

    def tool_wrapper(
        self,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
    ) -> ToolWrapper:
        """Return what makes the bodies of a ToolNode's tools effects; see ToolWrapper for the arguments.

        `ToolNode(tools, wrap_tool_call=wrapper.wrap_tool_call, awrap_tool_call=wrapper.awrap_tool_call)`.
        """
        from langgraph_durable.effects.wrapper import ToolWrapper

        return ToolWrapper(self, policies, default=default, trust_hints=trust_hints)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect with the policy that trusts nothing, for `ToolNode(wrap_tool_call=...)`."""
        return self.tool_wrapper().wrap_tool_call(request, execute)

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect; see `wrap_tool_call`."""
        return await self.tool_wrapper().awrap_tool_call(request, execute)

    # --- raw code ---

    @contextmanager
    def effect(
        self,
        name: str,
        *,
        key: str,
        args: Any = None,
        policy: EffectPolicy = _DEFAULT,
        issued: bool = True,
    ) -> Iterator[Effect]:
        """Carry an effect out by hand.

        `if not e.replayed: ...; e.complete(result)`. Leaving without `complete` or `fail`, also by `interrupt()`, means
        that it is unknown whether it happened, unless the exception tells (see EffectPolicy.failed_on).

        Args:
            name: What is done, such as "charge".
            key: What makes it the same effect whenever it is asked for again; unique among all of this name.
            args: Plain data, without iterators and secrets; the same key with other args is an EffectConflict.
            policy: What to do when an earlier attempt's end is unknown.
            issued: Whether it may happen from the start. With False it cannot before `e.issue()`: leaving before that
                means failed, or, by `interrupt()`, that the block is run again with the answer; and a process that dies
                before it has done nothing.

        Raises:
            EffectError: It can be neither begun nor replayed; the kinds say why.
        """
        call, place = self._named(name, key, args)
        guard = self._guard(self._saver._db, call, policy, place, named=True)
        attempt = run_now(guard.begin("issued" if issued else "claimed"))
        with self._held(attempt, policy):
            try:
                yield Effect(guard, attempt)
            except BaseException as exc:
                run_now(_leave(guard, attempt, exc))
                raise
            run_now(_leave(guard, attempt, None))

    @asynccontextmanager
    async def aeffect(
        self,
        name: str,
        *,
        key: str,
        args: Any = None,
        policy: EffectPolicy = _DEFAULT,
        issued: bool = True,
    ) -> AsyncIterator[AsyncEffect]:
        """Carry an effect out by hand, in async code; see `effect`."""
        call, place = self._named(name, key, args)
        guard = self._guard(self._saver._adb, call, policy, place, named=True)
        attempt = await guard.begin("issued" if issued else "claimed")
        with self._held(attempt, policy):
            try:
                yield AsyncEffect(guard, attempt)
            except BaseException as exc:
                await guard.db.finish(_leave(guard, attempt, exc))
                raise
            await guard.db.finish(_leave(guard, attempt, None))

    @contextmanager
    def _held(self, attempt: Attempt, policy: EffectPolicy) -> Iterator[None]:
        if attempt.replayed:
            self._note_replay(find_place())
        row = attempt.row
        lease = (
            nullcontext() if attempt.replayed else self._leases.keep(row.effect_id, row.fence, policy.lease)
        )
        with lease, running(attempt):
            yield

    # --- one transaction ---

    @contextmanager
    def transaction(self, name: str, *, key: str, args: Any = None) -> Iterator[tuple[Cursor[Any], Effect]]:
        """Write to the saver's own database and record the effect in one transaction: both, or neither.

        Where nothing leaves the database, this is exactly once, with nothing to verify. `if not e.replayed:` write
        with the cursor; `e.complete(result)` if there is a result to keep. What the saver itself is asked inside the
        block is part of the transaction on a single connection; with pools it takes another connection, and is not.

        Raises:
            EffectConflict: The key was used with other args.
            EffectError: The effect was begun outside of a transaction, and has not been completed.
        """
        call, place = self._named(name, key, args)
        db = self._saver._db
        guard = self._guard(db, call, _DEFAULT, place, named=True)
        with db.open_session() as (session, connection):
            attempt = run_now(_begin_in(guard, session))
            with running(attempt), Cursor(connection) as cursor:
                handle = _InTransaction(guard, attempt)
                yield cursor, handle
            run_now(_complete_in(guard, session, handle))

    @asynccontextmanager
    async def atransaction(
        self, name: str, *, key: str, args: Any = None
    ) -> AsyncIterator[tuple[AsyncCursor[Any], Effect]]:
        """Write to the saver's own database and record the effect in one transaction; see `transaction`."""
        call, place = self._named(name, key, args)
        db = self._saver._adb
        guard = self._guard(db, call, _DEFAULT, place, named=True)
        async with db.open_session() as (session, connection):
            attempt = await _begin_in(guard, session)
            with running(attempt):
                async with AsyncCursor(connection) as cursor:
                    handle = _InTransaction(guard, attempt)
                    yield cursor, handle
            await _complete_in(guard, session, handle)

    # --- looking, and deciding ---

    def get(self, effect_id: str) -> EffectRecord | None:
        """Return an effect, or None if there is none of this id.

        Raises:
            EffectError: `effect_id` is no ULID.
        """
        return run_now(self._get(self._saver._db, effect_id))

    async def aget(self, effect_id: str) -> EffectRecord | None:
        """Return an effect; see `get`."""
        return await self._get(self._saver._adb, effect_id)

    async def _get(self, db: Database, effect_id: str) -> EffectRecord | None:
        row = await ops.get_effect(db, _require_ulid(effect_id))
        return self._record(row) if row is not None else None

    def list(
        self,
        *,
        state: State | Sequence[State] | None = None,
        tool: str | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int | None = 1000,
    ) -> list[EffectRecord]:
        """Return effects, oldest first.

        Args:
            state: One state or several.
            tool: The tool's name.
            thread_id: The thread's id.
            run_id: The run that attempted them last.
            after: An effect's id, to go on after it.
            limit: How many at most; None for all.

        Raises:
            InvalidConfig: An argument cannot be used.
            EffectError: `after` is no ULID.
        """
        return run_now(self._list(self._saver._db, state, tool, thread_id, run_id, after, limit))

    async def alist(
        self,
        *,
        state: State | Sequence[State] | None = None,
        tool: str | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int | None = 1000,
    ) -> Sequence[EffectRecord]:
        """Return effects, oldest first; see `list`."""
        found: Sequence[EffectRecord] = await self._list(
            self._saver._adb, state, tool, thread_id, run_id, after, limit
        )
        return found

    async def _list(
        self,
        db: Database,
        state: State | Sequence[State] | None,
        tool: str | None,
        thread_id: str | None,
        run_id: str | None,
        after: str | None,
        limit: int | None,
    ) -> Any:  # a list: in this class `list` is the method
        states: Sequence[State] | None = [state] if isinstance(state, str) else state
        for one in states or ():
            if one not in TRANSITIONS:
                raise InvalidConfig(f"state= must be one or several of {', '.join(TRANSITIONS)}, got {one!r}")
        for name, text in (("tool", tool), ("thread_id", thread_id), ("run_id", run_id)):
            if text is not None:
                require_text(text, name)
        rows = await ops.list_effects(
            db,
            states=states,
            tool=tool,
            thread_id=thread_id,
            run_id=run_id,
            after=_require_ulid(after) if after is not None else None,
            limit=require_limit(limit),
        )
        return [self._record(row) for row in rows]

    def for_checkpoint(self, config: RunnableConfig) -> Sequence[EffectRecord]:
        """Return the effects that belong to a checkpoint: those its tasks asked for, oldest first.

        To a root graph's belong those of the subgraphs, too, that its tasks called, until their checkpoints are
        pruned. An effect belongs to one checkpoint: the first that asked for it, or, of an effect that failed,
        waited for a human or lost its owner before anything was sent, the last that attempted it. A replay records
        nothing, so a fork whose tasks were given outcomes of another branch shows none of them, only what it attempted
        itself; `saver.timeline` shows replays whose messages carry the mark.

        Args:
            config: Names the checkpoint, by id or ULID, such as a snapshot's of `get_state_history`; without an id,
                the latest of its namespace.

        Raises:
            InvalidConfig: `config` names no thread.
        """
        return run_now(self._for_checkpoint(self._saver._db, config))

    async def afor_checkpoint(self, config: RunnableConfig) -> Sequence[EffectRecord]:
        """Return the effects that belong to a checkpoint; see `for_checkpoint`."""
        return await self._for_checkpoint(self._saver._adb, config)

    async def _for_checkpoint(self, db: Database, config: RunnableConfig) -> Sequence[EffectRecord]:
        return [self._record(row) for row in await ops.list_checkpoint_effects(db, checkpoint_ref(config))]

    def pending(self, thread_id: str | None = None) -> Sequence[EffectRecord]:
        """Return the effects that need a decision: unknown ones, and those whose owner's lease ran out.

        Args:
            thread_id: Only this thread's.
        """
        return run_now(self._pending(self._saver._db, thread_id))

    async def apending(self, thread_id: str | None = None) -> Sequence[EffectRecord]:
        """Return the effects that need a decision; see `pending`."""
        return await self._pending(self._saver._adb, thread_id)

    async def _pending(self, db: Database, thread_id: str | None) -> Sequence[EffectRecord]:
        if thread_id is not None:
            require_text(thread_id, "thread_id")
        rows = await ops.list_effects(
            db, states=["unknown", "issued"], or_none_known=True, thread_id=thread_id
        )
        return [self._record(row) for row in rows if row.needs_decision]

    def resolve(
        self, effect_id: str, finding: Finding | None, *, note: str | None = None, actor: str | None = None
    ) -> EffectRecord:
        """Decide on an effect whose end is unknown; then run the graph again.

        Args:
            effect_id: The effect's ULID.
            finding: `Happened(result)`; `NotHappened()`, and it is tried again; or None, to abandon it.
            note: Why, for the history.
            actor: Who decides, for the history.

        Raises:
            EffectError: There is no such effect, or it needs no decision.
        """
        return run_now(self._resolve(self._saver._db, effect_id, finding, note, actor))

    async def aresolve(
        self, effect_id: str, finding: Finding | None, *, note: str | None = None, actor: str | None = None
    ) -> EffectRecord:
        """Decide on an effect whose end is unknown; see `resolve`."""
        return await self._resolve(self._saver._adb, effect_id, finding, note, actor)

    async def _resolve(
        self, db: Database, effect_id: str, finding: Finding | None, note: str | None, actor: str | None
    ) -> EffectRecord:
        ulid = _require_ulid(effect_id)
        if finding is not None and not isinstance(finding, (Happened, NotHappened)):
            raise EffectError(
                f"decide by Happened(result), NotHappened(), or None to abandon the effect; got {finding!r:.100}"
            )
        row = await ops.get_effect(db, ulid)
        if row is not None:
            await ops.expire_effect(db, row, owner(), by_hand=True)
            row = await ops.get_effect(db, ulid)
        if row is None:
            raise EffectError(f"there is no effect {effect_id!r}: EffectLog.pending() lists those that wait")
        if row.state not in TRANSITIONS:
            raise CheckpointCorrupted(f"{row.fault}. It cannot be decided on as long as its row is as it is")
        decided = row.state == "unknown" and await resolve(
            db, self._saver.serde, row, finding, source="human", actor=actor or owner(), reason=note
        )
        if not decided:
            raise EffectError(
                f"effect {effect_id} is {row.state}, and needs no decision: only unknown ones do, and those whose "
                "owner gives no sign of life"
            )
        after = await ops.get_effect(db, ulid)
        assert after is not None  # noqa: S101 (effects are not deleted)
        return self._record(after)

    def history(self, effect_id: str) -> Sequence[EffectEvent]:
        """Return the audit trail of an effect, oldest first."""
        return run_now(self._history(self._saver._db, effect_id))

    async def ahistory(self, effect_id: str) -> Sequence[EffectEvent]:
        """Return the audit trail of an effect; see `history`."""
        return await self._history(self._saver._adb, effect_id)

    async def _history(self, db: Database, effect_id: str) -> Sequence[EffectEvent]:
        return [event_of(effect_id, row) for row in await ops.list_events(db, _require_ulid(effect_id))]

    def _record(self, row: EffectRow) -> EffectRecord:
        return record_of(self._saver.serde, row)


_making = threading.Lock()


class _InTransaction(Effect):
    """An effect whose end is recorded with the transaction it is part of."""

    def issue(self) -> None:
        """Nothing: nothing is sent before the transaction ends."""

    def complete(self, result: Any = None) -> None:
        """Keep a result; that it took place is recorded with the transaction."""
        self._check()
        self._attempt.value = result

    def fail(self, error: str) -> None:
        """Refuse: raise an exception instead, which takes the transaction back."""
        raise EffectError(f"raise an exception to take the transaction back, instead of fail({error!r})")


async def _begin_in(guard: Guard, session: Any) -> Attempt:
    kind, row = await ops.claim_effect(
        session,
        guard.call,
        ops.new_effect_id(),
        "issued",
        owner(),
        timedelta(days=1),
        heed_twins=False,
        resumes=guard.resumes,
    )
    if kind == sql.MINE:
        return Attempt(row, guard.policy, replayed=False)
    if row.input_hash != guard.call.input_hash:
        raise EffectConflict(
            f"effect {show_ulid(row.effect_id)} ({row.tool!r}) was recorded under this key with other arguments"
        )
    if row.state != "completed":
        raise EffectError(
            f"effect {show_ulid(row.effect_id)} ({row.tool!r}) was begun outside of a transaction, and is {row.state}: "
            "use another key, or resolve it first"
        )
    return await guard.replay(row, session)


async def _complete_in(guard: Guard, session: Any, handle: _InTransaction) -> None:
    if not handle.replayed:
        attempt = handle._attempt
        outcome = guard.outcome_of(attempt.value)
        await ops.move_effect(
            session,
            attempt.row.effect_id,
            outcome,
            origins=["issued"],
            actor=owner(),
            reason="in one transaction",
            fence=attempt.row.fence,
        )


async def _leave(guard: Guard, attempt: Attempt, exc: BaseException | None) -> None:
    """Record the end of an effect that its code has not recorded itself."""
    if attempt.replayed or attempt.row.state not in ("claimed", "issued"):
        return
    await guard.end_with(attempt, exc or EffectError("left without complete() or fail()"), by_hand=True)


def _require_ulid(effect_id: str) -> Any:
    ulid = parse_ulid(effect_id) if isinstance(effect_id, str) else None
    if ulid is None:
        raise EffectError(f"not the id of an effect: {effect_id!r}; they are ULIDs, 26 letters and digits")
    return ulid
