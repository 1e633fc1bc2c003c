"""The world that a program's effects change, with the faults of the current action."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from langgraph.config import get_config

from langgraph_durable import DurableSaver, current_effect
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from tests.property.effect_law.programs import Case, Fault
from tests.property.effect_law.vendor import Vendor

_LINGER = 0.05
_SLOW = 0.08


class World:
    """What effects' bodies call."""

    def __init__(self, case: Case, vendor: Vendor) -> None:
        self.case = case
        self.vendor = vendor
        self._fault: Fault | None = None
        self._counted = 0
        self._lock = threading.Lock()

    def arm(self, fault: Fault | None) -> None:
        """Let a fault happen in what follows."""
        self._fault, self._counted = fault, 0

    def sell(self, order: str) -> str:
        """Have the vendor carry out an order, in the body of an effect."""
        fault = self._due("vendor")
        if fault is not None and not fault.after:
            _strike(fault)
        sale = self.vendor.sell(thread_id(), order, current_effect().idempotency_key)
        if fault is not None and fault.after:
            _strike(fault)
        return sale.text

    def is_first(self, what: str) -> bool:
        return self.vendor.is_first(f"{thread_id()} {what}")

    def note_dangling(self, calls: list[str]) -> None:
        """Note that a model saw tool calls without an answer."""
        self.vendor.refuse(thread_id(), calls)

    def _due(self, at: str) -> Fault | None:
        """Count an event, and return the fault that is due at it."""
        with self._lock:
            if self._fault is None or self._fault.at != at:
                return None
            self._counted += 1
            return self._fault if self._counted == self._fault.n else None

    def watch_database(self) -> None:
        """Let faults happen before and after operations on the database."""
        for driver in (BlockingDatabase, AsyncDatabase):
            self._watch(driver)
        if self.case.slow_writes:
            _slow_down_writes()

    def _watch(self, driver: Any) -> None:
        attempt = driver._attempt

        async def watched(db: Any, work: Any, transaction: bool) -> Any:
            fault = self._due("database")
            if fault is not None and not fault.after:
                _strike(fault)
            result = await attempt(db, work, transaction)
            if fault is not None and fault.after:
                _strike(fault)
            return result

        driver._attempt = watched


def thread_id() -> str:
    return str(get_config()["configurable"]["thread_id"])


def _strike(fault: Fault) -> None:
    if fault.linger and fault.at == "vendor":
        time.sleep(_LINGER)  # vendor calls of async programs run in threads
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.kind == "refuse":  # by the client's second try, after the first one's answer was lost
        raise ConnectionRefusedError("the vendor restarts")
    raise TimeoutError("the answer was lost")


def _slow_down_writes() -> None:
    put, aput = DurableSaver.put_writes, DurableSaver.aput_writes

    def put_writes(*args: Any, **kwargs: Any) -> None:
        time.sleep(_SLOW)
        put(*args, **kwargs)

    async def aput_writes(*args: Any, **kwargs: Any) -> None:
        import asyncio

        await asyncio.sleep(_SLOW)
        await aput(*args, **kwargs)

    DurableSaver.put_writes, DurableSaver.aput_writes = put_writes, aput_writes  # type: ignore[method-assign]
