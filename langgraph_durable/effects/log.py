"""The effect log of a saver: carries effects out, shows them, and takes decisions on them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from psycopg import AsyncCursor, Cursor

from langgraph_durable._checkpoints.refs import checkpoint_ref
from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects import _reading as reading
from langgraph_durable.effects._decisions.acknowledging import AcknowledgeMethods
from langgraph_durable.effects._decisions.resolving import Resolving
from langgraph_durable.effects._healing.methods import HealingMethods
from langgraph_durable.effects._protocol.attempt import running
from langgraph_durable.effects._protocol.claim import begin_effect
from langgraph_durable.effects._protocol.executor import EffectExecutor
from langgraph_durable.effects._protocol.run import record_unreported
from langgraph_durable.effects._transaction import begin_transaction_effect
from langgraph_durable.effects.handle import AsyncEffect, Effect
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.effects.records import EffectEvent, EffectRecord, State

if TYPE_CHECKING:
    from langgraph_durable.effects.tools import ToolWrapper

T = TypeVar("T")

_DEFAULT = EffectPolicy()


class EffectLog(Resolving, AcknowledgeMethods, HealingMethods):
    """The effects in one saver's database. Use `saver.effects`.

    Attributes:
        executor: For this package: what carries the effects out.
    """

    def __init__(self, executor: EffectExecutor) -> None:
        super().__init__(executor)
        self._context = executor.context

    # --- carrying effects out ---

    def run(
        self,
        name: str,
        *,
        key: str,
        body: Callable[[], T],
        args: Any = None,
        policy: EffectPolicy = _DEFAULT,
    ) -> T:
        """Run a function at most once, and return its result or the recorded one.

        `current_effect()` works inside the function. An exception from it means that it is unknown whether the effect
        took place, unless the policy's `failed_on` says otherwise.

        Args:
            name: What is done, such as "charge".
            key: What identifies the effect whenever it is requested again; unique among effects of this name.
            body: Called without arguments.
            args: Plain data to record and compare, without iterators and secrets. The same key with other args is an
                EffectConflictError.
            policy: What to do when an earlier attempt's outcome is unknown.

        Raises:
            EffectError: The effect can be neither carried out nor replayed; the subclasses say why.
        """
        if policy.read_only:
            return body()

        async def run_body() -> T:
            return body()

        call = self.executor.named_call(self._context.db, name, key, args, policy)
        result: T = self.executor.value(run_sync(self.executor.run(call, run_body)))
        return result

    async def arun(
        self,
        name: str,
        *,
        key: str,
        body: Callable[[], Awaitable[T]],
        args: Any = None,
        policy: EffectPolicy = _DEFAULT,
    ) -> T:
        """Run an async function at most once, and return its result or the recorded one; see `run`."""
        if policy.read_only:
            return await body()
        call = self.executor.named_call(self._context.adb, name, key, args, policy)
        result: T = self.executor.value(await self.executor.run(call, body))
        return result

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
        """Carry an effect out in a block that reports its outcome.

        `if not e.replayed: ...; e.complete(result)`. Leaving the block without `complete` or `fail`, also by
        `interrupt()`, means that it is unknown whether the effect took place, unless the exception proves that it did
        not (see EffectPolicy.failed_on).

        Args:
            name: See `run`.
            key: See `run`.
            args: See `run`.
            policy: See `run`.
            issued: Whether the effect may take place from the start of the block. With False it cannot before
                `e.issue()`. Leaving the block before that means failed, or, by `interrupt()`, that the block runs again
                with the answer. A process that dies before that has done nothing.

        Raises:
            EffectError: The effect can be neither begun nor replayed; the subclasses say why.
        """
        call = self.executor.named_call(self._context.db, name, key, args, policy)
        attempt = run_sync(begin_effect(call, "issued" if issued else "claimed"))
        with self.executor.holding(call, attempt):
            try:
                yield Effect(call, attempt)
            except BaseException as exc:
                run_sync(record_unreported(call, attempt, exc))
                raise
            run_sync(record_unreported(call, attempt, None))

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
        """Carry an effect out in an async block that reports its outcome; see `effect`."""
        call = self.executor.named_call(self._context.adb, name, key, args, policy)
        attempt = await begin_effect(call, "issued" if issued else "claimed")
        with self.executor.holding(call, attempt):
            try:
                yield AsyncEffect(call, attempt)
            except BaseException as exc:
                await call.db.finish(record_unreported(call, attempt, exc))
                raise
            await call.db.finish(record_unreported(call, attempt, None))

    @contextmanager
    def transaction(self, name: str, *, key: str, args: Any = None) -> Iterator[tuple[Cursor[Any], Effect]]:
        """Write rows to the saver's database and record the effect, in one transaction.

        If the effect is only these rows, this is exactly once, with nothing to verify. `if not e.replayed:` write with
        the cursor, and call `e.complete(result)` if there is a result to keep. Calls of the saver inside the block are
        part of the transaction if the saver has a single connection; with a pool they use another connection.

        Args:
            name: See `run`.
            key: See `run`.
            args: See `run`.

        Raises:
            EffectConflictError: The key was used with other args.
            EffectError: The effect was begun outside a transaction and is not completed.
        """
        db = self._context.db
        call = self.executor.named_call(db, name, key, args, _DEFAULT)
        with db.open_session() as (session, connection):
            handle = run_sync(begin_transaction_effect(call, session))
            with running(handle.attempt), Cursor(connection) as cursor:
                yield cursor, handle
            run_sync(handle.record(session))

    @asynccontextmanager
    async def atransaction(
        self, name: str, *, key: str, args: Any = None
    ) -> AsyncIterator[tuple[AsyncCursor[Any], Effect]]:
        """Write rows to the saver's database and record the effect, in one transaction; see `transaction`."""
        db = self._context.adb
        call = self.executor.named_call(db, name, key, args, _DEFAULT)
        async with db.open_session() as (session, connection):
            handle = await begin_transaction_effect(call, session)
            with running(handle.attempt):
                async with AsyncCursor(connection) as cursor:
                    yield cursor, handle
            await handle.record(session)

    # --- tools without @effect ---

    def tool_wrapper(
        self,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
    ) -> ToolWrapper:
        """Return a wrapper that makes the bodies of a ToolNode's tools effects; see ToolWrapper for the arguments.

        `ToolNode(tools, wrap_tool_call=wrapper.wrap_tool_call, awrap_tool_call=wrapper.awrap_tool_call)`.
        """
        from langgraph_durable.effects.tools import ToolWrapper  # langchain's tools take 0.3 s to import

        return ToolWrapper(self, policies, default=default, trust_hints=trust_hints)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect with the default policy, for `ToolNode(wrap_tool_call=...)`."""
        return self.tool_wrapper().wrap_tool_call(request, execute)

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect with the default policy; see `wrap_tool_call`."""
        return await self.tool_wrapper().awrap_tool_call(request, execute)

    # --- reading and deciding ---

    def replays(self, run_id: str | None = None) -> int:
        """Return how many effects this process replayed: in total, or in one of the last 1,024 runs with replays."""
        return self.executor.replays.count(run_id)

    def get(self, effect_id: str) -> EffectRecord | None:
        """Return an effect, or None if there is none with this id.

        Raises:
            EffectError: `effect_id` is not a ULID.
        """
        return run_sync(reading.get_record(self._context.db, self.executor.serde, effect_id))

    async def aget(self, effect_id: str) -> EffectRecord | None:
        """Return an effect; see `get`."""
        return await reading.get_record(self._context.adb, self.executor.serde, effect_id)

    def list(
        self,
        *,
        state: State | Sequence[State] | None = None,
        tool: str | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[EffectRecord]:
        """Iterate over effects, oldest first, fetched in pages.

        Args:
            state: One state or several.
            tool: The tool's name.
            thread_id: The thread's id.
            run_id: The run that attempted them last.
            after: An effect's id, to continue after it.
            limit: The largest number of effects; None for all.

        Raises:
            InvalidConfigError: An argument cannot be used.
            EffectError: `after` is not a ULID.
        """
        effect_filter = reading.EffectFilter(state, tool, thread_id, run_id)
        return reading.EffectListing(self.executor.serde, effect_filter, after, limit).iterate(
            self._context.db
        )

    def alist(
        self,
        *,
        state: State | Sequence[State] | None = None,
        tool: str | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[EffectRecord]:
        """Iterate over effects, oldest first, fetched in pages; see `list`."""
        effect_filter = reading.EffectFilter(state, tool, thread_id, run_id)
        return reading.EffectListing(self.executor.serde, effect_filter, after, limit).aiterate(
            self._context.adb
        )

    def for_checkpoint(self, config: RunnableConfig) -> builtins.list[EffectRecord]:
        """Return the effects that a checkpoint's tasks requested, oldest first.

        A root graph's checkpoint includes the effects of its subgraphs, until their checkpoints are pruned. An effect
        belongs to the first checkpoint that requested it. If it failed, waited for a human, or lost its owner before
        anything was sent, it belongs to the last that attempted it. It also belongs to those on other branches whose
        tasks were given its outcome.

        Args:
            config: Names the checkpoint by id or ULID, such as a snapshot's config; without an id, the latest one.

        Raises:
            InvalidConfigError: `config` does not name a thread.
        """
        return run_sync(
            reading.list_for_checkpoint(self._context.db, self.executor.serde, checkpoint_ref(config))
        )

    async def afor_checkpoint(self, config: RunnableConfig) -> builtins.list[EffectRecord]:
        """Return the effects that a checkpoint's tasks requested; see `for_checkpoint`."""
        return await reading.list_for_checkpoint(
            self._context.adb, self.executor.serde, checkpoint_ref(config)
        )

    def pending(self, thread_id: str | None = None) -> builtins.list[EffectRecord]:
        """Return the effects that need a decision, of one thread or all: unknown ones, and expired issued ones."""
        return run_sync(reading.list_pending(self._context.db, self.executor.serde, thread_id))

    async def apending(self, thread_id: str | None = None) -> builtins.list[EffectRecord]:
        """Return the effects that need a decision; see `pending`."""
        return await reading.list_pending(self._context.adb, self.executor.serde, thread_id)

    def history(self, effect_id: str) -> builtins.list[EffectEvent]:
        """Return the audit log of an effect, oldest first."""
        return run_sync(reading.list_history(self._context.db, effect_id))

    async def ahistory(self, effect_id: str) -> builtins.list[EffectEvent]:
        """Return the audit log of an effect; see `history`."""
        return await reading.list_history(self._context.adb, effect_id)
