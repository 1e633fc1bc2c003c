"""An asyncio connection whose event loop can end while it is connecting."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection
from typing_extensions import Self


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
