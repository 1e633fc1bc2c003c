"""The connections of our own pools, which send what they have before they wait for anything.

A turn of an event loop that runs 200 graphs takes tens of milliseconds, so what a call costs there is the turns it
takes; among threads it is the times that it gives up the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.abc import RV, PQGen
from psycopg.waiting import Ready, Wait
from typing_extensions import Self

_SENDS = 16
"""Steps of sending that may go one after the other; there is one for each statement of a pipeline."""


class LoopConnection(AsyncConnection[Any]):
    """psycopg's connection, which gives no turn away, and is closed at once if it is cancelled while it connects."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Connect; see psycopg."""
        try:
            return await super().connect(conninfo, **options)
        except asyncio.CancelledError as exc:
            # Its traceback would keep the frames that hold the socket, and the server would wait for the rest of
            # the handshake, for a minute.
            raise exc.with_traceback(None) from None

    async def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """Wait as psycopg does, but give no turn away for what need not wait, as psycopg (3.3.9) does after 5 ms."""
        rest = _sent(gen)
        try:
            next(rest)
        except StopIteration as stop:
            result: RV = stop.value
            return result
        return await super().wait(rest, *args, **options)


class ThreadConnection(Connection[Any]):
    """psycopg's connection, which does not ask first whether it can send: at each such question others may go."""

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """Wait as psycopg does."""
        return super().wait(_sent(gen), *args, **options)


def _sent(gen: PQGen[RV]) -> PQGen[RV]:
    """Go on with a generator as long as there is something to send; what does not go out stays in libpq's buffer.

    Asked again, as after a cancellation, it still waits for the same.
    """
    try:
        waits_for = next(gen)
        for _ in range(_SENDS):
            if not waits_for & Wait.W:
                break
            waits_for = gen.send(Ready.W)
        while True:
            while not (ready := (yield waits_for)):
                pass
            waits_for = gen.send(ready)
    except StopIteration as stop:
        result: RV = stop.value
        return result
