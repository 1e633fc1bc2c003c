"""An effect log's two halves behind one set of async names, and what tests do to effects behind its back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg

from langgraph_durable import DurableSaver, EffectEvent, EffectLog, EffectPolicy, EffectRecord
from langgraph_durable.effects import AsyncEffect, Effect

SCHEMA = "langgraph_durable"


class Hand:
    """An effect in hand, sync or async, by async names."""

    def __init__(self, inner: Effect | AsyncEffect) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def issue(self) -> None:
        await _finish(self.inner.issue())

    async def complete(self, result: Any = None) -> None:
        await _finish(self.inner.complete(result))

    async def fail(self, error: str) -> None:
        await _finish(self.inner.fail(error))


async def _finish(answer: Any) -> None:
    if answer is not None:
        await answer


class Log:
    """Calls the async methods of a log, or, inside the running event loop, its sync ones."""

    def __init__(self, saver: DurableSaver, *, asynchronous: bool) -> None:
        self.saver = saver
        self.inner = EffectLog.from_saver(saver)
        self.asynchronous = asynchronous

    @asynccontextmanager
    async def effect(
        self,
        name: str = "pay",
        *,
        key: str = "k",
        args: Any = None,
        policy: EffectPolicy | None = None,
        **options: Any,
    ) -> AsyncIterator[Hand]:
        policy = policy or EffectPolicy()
        if self.asynchronous:
            async with self.inner.aeffect(name, key=key, args=args, policy=policy, **options) as e:
                yield Hand(e)
            return
        with self.inner.effect(name, key=key, args=args, policy=policy, **options) as made:
            yield Hand(made)

    @asynccontextmanager
    async def transaction(
        self, name: str = "seat", *, key: str = "k", args: Any = None
    ) -> AsyncIterator[tuple[Any, Effect]]:
        """Give an `execute` to await, and the effect."""
        if self.asynchronous:
            async with self.inner.atransaction(name, key=key, args=args) as (acursor, e):
                yield acursor.execute, e
            return
        with self.inner.transaction(name, key=key, args=args) as (cursor, e):

            async def execute(query: str, params: Sequence[Any] | None = None) -> Any:
                return cursor.execute(query, params)

            yield execute, e

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.asynchronous:
            return await getattr(self.inner, f"a{name}")(*args, **kwargs)
        return getattr(self.inner, name)(*args, **kwargs)

    async def get(self, effect_id: str) -> EffectRecord | None:
        found: EffectRecord | None = await self._call("get", effect_id)
        return found

    async def list(self, **filters: Any) -> Sequence[EffectRecord]:
        found: Sequence[EffectRecord] = await self._call("list", **filters)
        return found

    async def pending(self, thread_id: str | None = None) -> Sequence[EffectRecord]:
        found: Sequence[EffectRecord] = await self._call("pending", thread_id)
        return found

    async def resolve(self, effect_id: str, finding: Any, **options: Any) -> EffectRecord:
        found: EffectRecord = await self._call("resolve", effect_id, finding, **options)
        return found

    async def history(self, effect_id: str) -> Sequence[EffectEvent]:
        found: Sequence[EffectEvent] = await self._call("history", effect_id)
        return found

    # --- shorthands ---

    async def only(self) -> EffectRecord:
        """The only effect there is."""
        [found] = await self.list()
        return found

    async def moves(self) -> Sequence[tuple[str | None, str]]:
        """What states the only effect went through, by its history."""
        return [(e.from_state, e.to_state) for e in await self.history((await self.only()).effect_id)]

    async def leave_unknown(self, **kwargs: Any) -> str:
        """Attempt an effect whose end nobody learns; return its vendor key."""
        try:
            async with self.effect(**kwargs) as e:
                vendor_key: str = e.vendor_key
                await e.issue()
                raise TimeoutError("no answer")
        except TimeoutError:
            return vendor_key


def age(conninfo: str, by: timedelta = timedelta(hours=1)) -> None:
    """Make every effect older, and so every lease end if it was no longer than that."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            f"UPDATE {SCHEMA}.effects SET lease_until = lease_until - %(by)s, "
            "attempted_at = attempted_at - %(by)s, first_attempt_at = first_attempt_at - %(by)s",
            {"by": by},
        )


def next_transaction(conninfo: str) -> str:
    """The id that the next transaction gets which writes anything."""
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        assert row is not None
        return str(row[0])
