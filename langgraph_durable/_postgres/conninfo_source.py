"""Where the connection strings of the saver's own pools come from: a string, or a callable for each connection.

A callable serves passwords that rotate: tokens of RDS IAM or Entra, files that a secrets manager writes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_durable._postgres.conninfo import complete_conninfo, planning_beside
from langgraph_durable.errors import InvalidConfigError

Conninfo: TypeAlias = "str | Callable[[], str | Awaitable[str]]"
"""A connection string, or a sync or async function that returns one."""


class ConninfoSource:
    """Returns a complete connection string for each new connection."""

    def __init__(self, given: Conninfo) -> None:
        """Use what a caller gave.

        Raises:
            InvalidConfigError: It is neither callable nor a connection string.
        """
        self._ask = given if callable(given) else None
        self.plain = False
        """Whether to leave our startup options out."""
        # What a callable returns is not known yet, so its startup options are not, either.
        plain, options = ("", None) if callable(given) else complete_conninfo(given)
        self.planning = planning_beside(options)
        self._last = "" if callable(given) else self._with_options(plain, options)
        self._last_plain = plain

    def get(self) -> str:
        """Return a connection string; blocks while a callable runs."""
        if self._ask is not None:
            answer = self._ask()
            self._accept(_finish_in_thread(answer) if inspect.isawaitable(answer) else answer)
        return self._last_plain if self.plain else self._last

    async def aget(self) -> str:
        """Return a connection string; a sync callable runs in a thread, since it may ask a server for a token."""
        if self._ask is not None:
            answer = await asyncio.to_thread(self._ask)
            self._accept(await answer if inspect.isawaitable(answer) else answer)
        return self._last_plain if self.plain else self._last

    def for_pool(self, get: Callable[[], Any]) -> Any:
        """Return what psycopg_pool is given: the string, or `get` if each connection may have another one."""
        if self._ask is not None:
            return get
        return self._last_plain if self.plain else self._last

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the last connection string; none before a callable was asked."""
        return conninfo_to_dict(self._last)

    def _accept(self, answer: Any) -> None:
        try:
            plain, options = complete_conninfo(answer)
        except InvalidConfigError as exc:
            raise InvalidConfigError(f"the callable that was given for conninfo returned {exc}") from exc
        self._last_plain, self._last = plain, self._with_options(plain, options)

    @staticmethod
    def _with_options(plain: str, options: str | None) -> str:
        ours = [f"-c {name}={value}" for name, value in planning_beside(options).items() if value]
        return make_conninfo(plain, options=" ".join([options or "", *ours]).strip())


def _finish_in_thread(answer: Awaitable[str]) -> str:
    """Await an answer in a thread with an event loop, since the calling thread may run one."""
    found: list[str] = []
    failed: list[BaseException] = []

    async def finish() -> None:
        found.append(await answer)

    def run() -> None:
        try:
            asyncio.run(finish())
        except BaseException as exc:  # raised in the calling thread
            failed.append(exc)

    thread = threading.Thread(target=run, name="langgraph_durable conninfo")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]
