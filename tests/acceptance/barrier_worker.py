"""A worker that pays and is killed at once, while the writes that the payment depends on are still being stored.

`python -m tests.acceptance.barrier_worker KIND SLOW DURABILITY DRIVE CONNINFO LEDGER`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, Happened, NotHappened, effect
from langgraph_durable._checkpoints import put
from tests.acceptance.driving import Drive, interrupts, thread

DELAY = 0.7


class SlowSaver(DurableSaver):
    """A saver whose writes wait before it sees them, as they do behind other work of LangGraph's executor."""

    def put_writes(self, *args: Any) -> None:
        time.sleep(DELAY)
        super().put_writes(*args)

    async def aput_writes(self, *args: Any) -> None:
        await asyncio.sleep(DELAY)
        await super().aput_writes(*args)


class State(TypedDict, total=False):
    paid: str


class Ledger:
    """What was decided and paid, in files that survive the process."""

    def __init__(self, path: Path, *, deadly: bool = False) -> None:
        self._paid, self._decisions = path / "paid", path / "decisions"
        self._deadly = deadly

    def pay(self, what: str) -> str:
        with self._paid.open("a") as file:
            file.write(f"{what}\n")
        if self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {what}"

    @property
    def paid(self) -> list[str]:
        return self._paid.read_text().split() if self._paid.exists() else []

    def decide(self) -> str:
        """Decide otherwise each time."""
        number = len(self._decisions.read_text()) if self._decisions.exists() else 0
        self._decisions.write_text("." * (number + 1))
        return f"choice-{number}"


def build(kind: str, saver: DurableSaver, ledger: Ledger, *, asynchronous: bool) -> Any:
    """Return a graph that pays what a task decided, or what a human answered."""

    def find(record: Any) -> Happened | NotHappened:
        what = record.args["what"]
        return Happened(f"paid {what}") if what in ledger.paid else NotHappened()

    scope: Any = "thread" if kind == "answer by id, scope" else "call"

    @effect(verify=find, lease=1, scope=scope)
    def pay(what: str) -> str:
        return ledger.pay(what)

    @effect(name="pay", verify=find, lease=1, scope=scope)
    async def apay(what: str) -> str:
        return ledger.pay(what)

    if kind in ("task", "answer to caller"):
        flow = _flow if kind == "task" else _asking_flow
        return flow(saver, ledger, apay if asynchronous else pay, asynchronous=asynchronous)

    def node(state: State) -> dict[str, str]:
        return {"paid": pay(str(interrupt("how much?")))}

    async def anode(state: State) -> dict[str, str]:
        return {"paid": await apay(str(interrupt("how much?")))}

    builder = StateGraph(State)
    builder.add_node("node", anode if asynchronous else node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def _flow(saver: DurableSaver, ledger: Ledger, pay: Callable[[str], Any], *, asynchronous: bool) -> Any:
    if asynchronous:

        @task
        async def adecide() -> str:
            return ledger.decide()

        @entrypoint(checkpointer=saver)
        async def aflow(given: str) -> str:
            paid: str = await pay(await adecide())
            return paid

        return aflow

    @task
    def decide() -> str:
        return ledger.decide()

    @entrypoint(checkpointer=saver)
    def flow(given: str) -> str:
        paid: str = pay(decide().result())
        return paid

    return flow


def _asking_flow(
    saver: DurableSaver, ledger: Ledger, pay: Callable[[str], Any], *, asynchronous: bool
) -> Any:
    """Return a flow that asks how much to pay, and has a task pay it."""
    if asynchronous:

        @task
        async def acharge(what: str) -> str:
            paid: str = await pay(what)
            return paid

        @entrypoint(checkpointer=saver)
        async def aflow(given: Any) -> dict[str, str]:
            return {"paid": await acharge(str(interrupt("how much?")))}

        return aflow

    @task
    def charge(what: str) -> str:
        paid: str = pay(what)
        return paid

    @entrypoint(checkpointer=saver)
    def flow(given: Any) -> dict[str, str]:
        return {"paid": charge(str(interrupt("how much?"))).result()}

    return flow


def slow_down_storing() -> None:
    """Make writes slow after the saver has seen them, as large ones are."""
    store = put._store_writes

    async def slow(db: Any, *args: Any) -> None:
        await db.sleep(DELAY)
        await store(db, *args)

    vars(put)["_store_writes"] = slow


async def main(kind: str, slow: str, durability: Any, drive: Drive, conninfo: str, ledger: Ledger) -> None:
    """Run until the payment kills this process."""
    async with DurableSaver.from_conn_string(conninfo) as saver:
        graph = build(kind, saver, ledger, asynchronous=drive.asynchronous)
        await drive.invoke(graph, {}, thread(), durability=durability) if kind != "task" else None
        answer = "5"
        if kind not in ("task", "answer"):
            [asked] = interrupts(await drive.state(graph, thread()))
            answer = {asked.id: "5"}  # type: ignore[assignment]
    if slow == "in flight":
        slow_down_storing()
    saver_type = SlowSaver if slow == "not begun" else DurableSaver
    async with saver_type.from_conn_string(conninfo) as saver:
        graph = build(kind, saver, ledger, asynchronous=drive.asynchronous)
        given: Any = "go" if kind == "task" else Command(resume=answer)
        await drive.invoke(graph, given, thread(), durability=durability)


if __name__ == "__main__":
    _, kind, slow, durability, driven, conninfo, path = sys.argv
    drive = Drive(asynchronous=driven == "async")
    asyncio.run(main(kind, slow, durability, drive, conninfo, Ledger(Path(path), deadly=True)))
