"""The body of an effect: its time limit, and whether it has run when it returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from inspect import isawaitable, iscoroutine
from typing import Any

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.drivers import BlockingDatabase
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall
from langgraph_durable.errors import EffectError

_SECONDS_TO_END = 1.0
"""How long a cancelled body may take to clean up."""


class BodyTimeoutError(Exception):
    """The body did not end in time and was cancelled."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(timeout)
        self.timeout = timeout


async def run_in_time(call: EffectCall, body: Callable[[], Awaitable[Any]]) -> Any:
    """Run a body; cancel an async one when the policy's timeout has passed.

    Raises:
        BodyTimeoutError: It was cancelled, or ignores that and is left behind.
    """
    timeout = call.policy.timeout
    if timeout is None or isinstance(call.db, BlockingDatabase):  # a sync body cannot be cancelled
        return await body()
    task = asyncio.ensure_future(body())
    try:
        await asyncio.wait({task}, timeout=timeout.total_seconds())
    except asyncio.CancelledError:  # the caller's: the body gets it, and its end is the body's
        task.cancel()
        return await task
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=_SECONDS_TO_END)
    if not task.done():
        task.add_done_callback(_ignore_end)
        raise BodyTimeoutError(timeout)
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        return task.result()  # it ended after all
    raise BodyTimeoutError(timeout) from error


def _ignore_end(task: asyncio.Future[Any]) -> None:
    """Fetch a late exception, which asyncio would report as never retrieved."""
    with suppress(asyncio.CancelledError):
        task.exception()


def require_ended(attempt: Attempt) -> None:
    """Refuse a value whose body may have yet to run, such as a future or a lazy `map`.

    Raises:
        EffectError: It is one, or is a list, tuple, set or dict of one.
    """
    for value in (attempt.value, *_parts(attempt.value)):
        if not (isawaitable(value) or isinstance(value, (Future, Iterator, AsyncIterator))):
            continue
        if iscoroutine(value):
            value.close()
        raise EffectError(
            f"{attempt.row.tool!r} returned a {type(value).__name__}, whose body runs after it returned. Effect: "
            f"{format_ulid(attempt.row.effect_id)}. Make it return its result: wait for futures, make a list of an "
            "iterator, and write it as an `async def` if it awaits",
            format_ulid(attempt.row.effect_id),
        )


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple, set, frozenset)) else ()
