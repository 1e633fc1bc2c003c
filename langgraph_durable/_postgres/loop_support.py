"""Whether an event loop can wait on sockets, as psycopg's asyncio connections must: Windows' default loop cannot."""

from __future__ import annotations

import asyncio
import socket
import weakref

_can_wait: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, bool] = weakref.WeakKeyDictionary()


def can_wait_on_sockets() -> bool:
    """Return whether the running event loop can wait on sockets; tried once for each loop."""
    loop = asyncio.get_running_loop()
    can = _can_wait.get(loop)
    if can is None:
        can = _can_wait[loop] = _try(loop)
    return can


def _try(loop: asyncio.AbstractEventLoop) -> bool:
    ours, other = socket.socketpair()
    with ours, other:
        try:
            loop.add_reader(ours, lambda: None)
        except NotImplementedError:  # of a ProactorEventLoop
            return False
        loop.remove_reader(ours)
        return True
