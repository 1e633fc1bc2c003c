"""A connection whose event loop can end while it connects."""

from __future__ import annotations

import asyncio
import gc

import pytest

from langgraph_durable._loop_connection import LoopConnection


async def test_a_connection_cancelled_while_it_connects_leaves_no_socket_open() -> None:
    """Else the server waits a minute for it, and a DROP DATABASE with the server."""
    arrived, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        while await reader.read(4096):
            pass
        left.set()
        writer.close()

    listener = await asyncio.start_server(say_nothing, "127.0.0.1")
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        attempt = asyncio.create_task(LoopConnection.connect(f"host=127.0.0.1 port={port} user=u dbname=d"))
        await arrived.wait()
        gc.disable()  # closing must not wait for the collector
        try:
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
            del attempt
            await asyncio.wait_for(left.wait(), 5)
        finally:
            gc.enable()
