"""An asyncio connection for busy event loops, which can also end while it is connecting.

A turn of a loop that runs 200 graphs takes tens of milliseconds, so what a call costs there is the turns it takes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import RV, PQGen
from psycopg.waiting import Ready, Wait
from typing_extensions import Self

_SENDS = 16
"""Steps of sending that may go one after the other; there is one for each statement of a pipeline."""


class LoopConnection(AsyncConnection[Any]):
    """psycopg's connection, which is closed at once if it is cancelled while it connects."""

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
        """Wait as psycopg does, but go on as long as there is something to send, and give a turn away for none of it.

        psycopg (3.3.9) gives one away if its last was 5 ms ago. What does not go out just now stays in libpq's buffer.
        """
        try:
            waits_for = next(gen)
            for _ in range(_SENDS):
                if not waits_for & Wait.W:
                    break
                waits_for = gen.send(Ready.W)
        except StopIteration as stop:
            result: RV = stop.value
            return result
        return await super().wait(_rest_of(gen, waits_for), *args, **options)


def _rest_of(gen: PQGen[RV], waits_for: Wait) -> PQGen[RV]:
    """Go on with a generator that has begun; asked again, as after a cancellation, it still waits for the same."""
    try:
        while True:
            while not (ready := (yield waits_for)):
                pass
            waits_for = gen.send(ready)
    except StopIteration as stop:
        result: RV = stop.value
        return result
