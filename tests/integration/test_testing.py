"""What users' tests get: empty databases, crashes at named points, and the fake vendor."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import Any, get_args

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, Happened, NotHappened, current_effect, effect
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.testing import CrashPoint, Databases, FakeVendor, crash_at
from tests.checkpoints import config_for

pytestmark = pytest.mark.context


class State(TypedDict, total=False):
    order: str
    receipt: str


async def pay_for(conninfo: str, vendor: FakeVendor, order: str, given: State | None) -> str:
    """Run a graph whose node pays; return the receipt."""

    async def look(attempt: Any) -> Happened | NotHappened:
        payments = await asyncio.to_thread(vendor.payments, order)
        return Happened(payments[0]["payment"]) if payments else NotHappened()

    @effect(verify=look, lease=0.5)
    async def charge(order: str) -> str:
        paid = await asyncio.to_thread(vendor.pay, order, 500, current_effect().idempotency_key)
        return str(paid["payment"])

    async def node(state: State) -> State:
        return {"receipt": await charge(state["order"])}

    async with DurableSaver.from_conn_string(conninfo) as saver:
        builder = StateGraph(State)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        graph = builder.compile(checkpointer=saver)
        done = await graph.ainvoke(given, config_for("t"), durability="sync")
        return str(done["receipt"])


@pytest.mark.parametrize("point", get_args(CrashPoint))
async def test_a_payment_survives_a_crash_at_any_point(
    point: CrashPoint, durable_conninfo: str, durable_vendor: FakeVendor
) -> None:
    order = point.replace(" ", "-")
    given: State = {"order": order}
    await asyncio.to_thread(crash_at, point, pay_for, durable_conninfo, durable_vendor, order, given)
    assert len(durable_vendor.payments(order)) == (point in ("effect done", "effect recorded"))
    async with DurableSaver.from_conn_string(durable_conninfo) as saver:
        started = await saver.aget_tuple(config_for("t")) is not None
    receipt = await pay_for(durable_conninfo, durable_vendor, order, None if started else given)
    assert receipt == f"{order}/0"
    assert len(durable_vendor.payments(order)) == 1


def put_two(conninfo: str) -> None:
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"receipt": "none"})
    builder.add_edge(START, "node")
    with DurableSaver.from_conn_string(conninfo) as saver:
        builder.compile(checkpointer=saver).invoke({}, config_for("t"), durability="sync")


def test_the_occurrence_of_a_point_is_counted(durable_conninfo: str, durable_saver: DurableSaver) -> None:
    crash_at("checkpoint stored", put_two, durable_conninfo, occurrence=2)
    assert [t.metadata["step"] for t in durable_saver.list(config_for("t"))] == [0, -1]


def fail(conninfo: str) -> None:
    raise RuntimeError("the function's own fault")


def sleep() -> None:
    time.sleep(60)


def leave() -> None:
    os._exit(3)


def test_a_point_that_is_not_reached_fails_the_test(durable_conninfo: str) -> None:
    with pytest.raises(AssertionError, match="put_two did not come to 'effect begun' 1 times: it returned"):
        crash_at("effect begun", put_two, durable_conninfo)
    with pytest.raises(AssertionError, match=r"(?s)it raised.*the function's own fault"):
        crash_at("effect begun", fail, durable_conninfo)
    with pytest.raises(AssertionError, match="its process ended with 3"):
        crash_at("effect begun", leave)
    with pytest.raises(TimeoutError, match=r"sleep did not come to 'effect begun' within 0.2 s"):
        crash_at("effect begun", sleep, timeout=0.2)


def test_arguments_that_cannot_be_used_are_refused() -> None:
    wrong: Any = "lunch"
    with pytest.raises(
        InvalidConfigError, match=r"no point 'lunch': pass one of before effect, effect begun"
    ):
        crash_at(wrong, sleep)
    for occurrence in (0, True, "1"):
        with pytest.raises(InvalidConfigError, match="occurrence must be an int >= 1"):
            crash_at("effect begun", sleep, occurrence=occurrence)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="timeout must be seconds"):
        crash_at("effect begun", sleep, timeout=-1)


def test_databases_are_separate_and_made_quickly(durable_databases: Databases) -> None:
    seconds: list[float] = []
    template = durable_databases.template
    for number in range(12):
        start = time.perf_counter()
        name = durable_databases.create(template)
        with DurableSaver.from_conn_string(durable_databases.conninfo(name)) as saver:
            seconds.append(time.perf_counter() - start)
            assert list(saver.list(None)) == []
            put_two(durable_databases.conninfo(name))
            assert len(list(saver.list(None))) == 3, number
        start = time.perf_counter()
        durable_databases.drop(name)
        seconds[-1] += time.perf_counter() - start
    print(f"milliseconds for a database: {statistics.median(seconds) * 1000:.0f}")
    assert statistics.median(seconds) < 0.5  # 50 ms on an idle machine


def test_databases_are_dropped_at_the_end(durable_server: str) -> None:
    with Databases(durable_server) as databases:
        made = [databases.create() for _ in range(2)]
        databases.drop(made[0])
        with psycopg.connect(databases.conninfo(made[1])):  # a connection left open does not keep it
            databases.close()
        with psycopg.connect(durable_server) as connection:
            rows = connection.execute("SELECT 1 FROM pg_database WHERE datname = ANY(%s)", (made,)).fetchall()
    assert rows == []
