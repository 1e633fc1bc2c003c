"""Effects whose processes die, stop or race: a sample of the kill matrix, and cases outside of it.

`make torture` runs the whole matrix.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_durable import DurableSaver, Happened, NotHappened, current_effect, effect
from langgraph_durable.effects import EffectLog, EffectRecord
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_workers import CENTS, Request, context, race, run, started
from tests.acceptance.kill_matrix import POINTS, RESUMES, SETTINGS, Cell, run_cell, sample
from tests.acceptance.test_kills import wait_until
from tests.conftest import Databases
from tests.vendor import PaymentRefusedError, Rules, Vendor, running_vendor

ORDER = "order"


@pytest.fixture(scope="module")
def shared_vendor() -> Iterator[Vendor]:
    with running_vendor() as vendor:
        yield vendor


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with running_vendor() as vendor:
        yield vendor


@pytest.fixture
def log(saver: DurableSaver) -> EffectLog:
    return saver.effects


@pytest.fixture
def request_to_pay(conninfo: str, vendor: Vendor, drive: Drive) -> Request:
    return Request(ORDER, conninfo, vendor, asynchronous=drive.asynchronous)


def finish(request: Request) -> Any:
    with started(run, request) as worker:
        return worker.finish()


# --- the matrix ---


@pytest.fixture(scope="module")
def shared_saver(databases: Databases, template: str) -> Iterator[tuple[str, DurableSaver]]:
    """A database for all cells: each has a separate thread."""
    name = databases.create(template)
    with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
        yield databases.conninfo(name), saver
    databases.drop(name)


def test_the_sample_covers_each_point_resume_and_setting() -> None:
    chosen = sample()
    assert {cell.point for cell in chosen} == set(POINTS)
    assert {cell.resume for cell in chosen} == set(RESUMES)
    assert {cell.setting for cell in chosen} == set(SETTINGS)
    assert {cell.asynchronous for cell in chosen} == {False, True}


CELLS = [pytest.param(cell, marks=[pytest.mark.context] * cell.needs_context) for cell in sample()]


@pytest.mark.parametrize("cell", CELLS, ids=[str(cell) for cell in sample()])
def test_a_killed_effect_happens_once(
    cell: Cell, shared_saver: tuple[str, DurableSaver], shared_vendor: Vendor
) -> None:
    conninfo, saver = shared_saver
    run_cell(cell, conninfo, saver, shared_vendor)


@pytest.mark.parametrize("kind", ["tool", pytest.param("node", marks=pytest.mark.context)])
def test_exit_durability_is_refused_without_a_key(
    request_to_pay: Request, vendor: Vendor, log: EffectLog, kind: Any
) -> None:
    end, said = finish(replace(request_to_pay, kind=kind, durability="exit"))

    assert (end, 'durability="exit"' in said) == ("EffectError", True)
    assert vendor.payments(ORDER) == []
    assert list(log.list()) == []


# --- vendors ---


def test_a_definite_failure_changes_the_idempotency_key(
    request_to_pay: Request, vendor: Vendor, log: EffectLog
) -> None:
    vendor.set_rules(ORDER, Rules(errors=1))
    request = replace(request_to_pay, failed_on=(PaymentRefusedError,))
    assert finish(request)[0] == "PaymentRefusedError"

    # The vendor would answer the first key with its saved refusal every time.
    assert finish(replace(request, input=False))[0] == "finished"

    [payment] = vendor.payments(ORDER)
    [done] = log.list()
    assert (done.state, done.generation, done.idempotency_key) == ("completed", 1, payment["key"])


def test_an_unknown_end_keeps_the_idempotency_key(
    request_to_pay: Request, vendor: Vendor, log: EffectLog
) -> None:
    vendor.set_rules(ORDER, Rules(errors=1))
    request = replace(request_to_pay, verify=False, on_unknown="retry")
    for input_ in (True, False):
        assert finish(replace(request, input=input_))[0] == "PaymentRefusedError"

    assert vendor.payments(ORDER) == []
    [unknown] = log.pending()
    assert (unknown.state, unknown.generation, unknown.attempts) == ("unknown", 0, 2)


def test_a_key_past_its_window_is_not_sent_again(request_to_pay: Request, vendor: Vendor) -> None:
    request = replace(request_to_pay, verify=False, on_unknown="retry", idempotency_window=0.0)
    with started(run, replace(request, point="after response")) as worker:
        worker.die()
    vendor.expire(ORDER)

    end, said = finish(replace(request, input=False))
    assert (end, said["tool"]) == ("asked", "pay")
    [payment] = vendor.payments(ORDER)
    answer = {"effect": said["effect"], "decision": "happened", "result": payment}
    assert finish(replace(request, input=False, answer=answer))[0] == "finished"

    assert vendor.payments(ORDER) == [payment]


def test_an_unknown_effect_is_verified_before_it_is_retried(request_to_pay: Request, vendor: Vendor) -> None:
    vendor.set_rules(ORDER, Rules(keys="ignore"))
    with started(run, replace(request_to_pay, point="after response")) as worker:
        worker.die()

    assert finish(replace(request_to_pay, input=False))[0] == "finished"

    assert len(vendor.payments(ORDER)) == 1


def test_not_happened_is_believed_only_after_the_delay(request_to_pay: Request, vendor: Vendor) -> None:
    request = replace(request_to_pay, settle=4.0)
    vendor.set_rules(ORDER, Rules(hold="before commit"))
    with started(run, request) as worker:
        vendor.wait_held(ORDER)
        worker.kill()
    with started(run, replace(request, input=False)) as worker:
        while (said := worker.hear()) == ("waits", "issued"):
            pass
        assert said == ("looked", 0)
        vendor.release(ORDER)  # only now the dead client's request is carried out
        assert worker.finish()[0] == "finished"

    assert len(vendor.payments(ORDER)) == 1


# --- processes that race, and that stop ---


def test_sixteen_processes_at_once_pay_once(conninfo: str, vendor: Vendor, log: EffectLog) -> None:
    orders = [f"order-{number}" for number in range(20)]
    for order in orders:
        vendor.set_rules(order, Rules(keys="ignore"))
    barrier = context.Barrier(16)
    with ExitStack() as stack:
        workers = [stack.enter_context(started(race, conninfo, vendor, orders, barrier)) for _ in range(16)]
        seen = [worker.finish() for worker in workers]

    assert seen == [[f"{order}/0" for order in orders]] * 16
    assert [len(vendor.payments(order)) for order in orders] == [1] * 20
    assert [(found.state, found.attempts) for found in log.list()] == [("completed", 1)] * 20


def test_a_late_owner_is_believed_if_its_fence_is_current(
    request_to_pay: Request, vendor: Vendor, log: EffectLog
) -> None:
    request = replace(request_to_pay, verify=False, lease=0.5)
    with started(run, replace(request, point="after response", on_point="stand still")) as worker:
        assert worker.hear() == ("reached", "after response")
        worker.signal(signal.SIGSTOP)
        wait_until(lambda: bool(log.pending()))
        assert finish(replace(request, input=False))[0] == "EffectUnknownError"
        worker.signal(signal.SIGCONT)
        worker.say()
        assert worker.finish()[0] == "finished"

    [done] = log.list()
    assert (done.state, done.source, done.attempts, done.fence) == ("completed", "executed", 1, 1)
    assert [event.to_state for event in log.history(done.effect_id)] == ["issued", "unknown", "completed"]
    assert len(vendor.payments(ORDER)) == 1


def _take_over(request: Request, log: EffectLog) -> None:
    again = replace(request, input=False, on_unknown="retry")
    assert finish(again)[0] == "finished"


def _abandon(request: Request, log: EffectLog) -> None:
    [pending] = log.pending()
    log.resolve(pending.effect_id, None, note="given up")


@pytest.mark.parametrize(("move", "state"), [(_take_over, "completed"), (_abandon, "abandoned")])
def test_a_late_owner_is_refused_if_the_fence_has_risen(
    request_to_pay: Request,
    vendor: Vendor,
    log: EffectLog,
    move: Callable[[Request, EffectLog], None],
    state: str,
) -> None:
    request = replace(request_to_pay, verify=False, lease=0.5)
    with started(run, replace(request, point="after response", on_point="stand still")) as worker:
        assert worker.hear() == ("reached", "after response")
        worker.signal(signal.SIGSTOP)
        wait_until(lambda: bool(log.pending()))
        move(request, log)
        worker.signal(signal.SIGCONT)
        worker.say()
        assert worker.finish()[0] == "EffectSupersededError"

    [found] = log.list()
    assert (found.state, found.fence) == (state, 2)
    [*_, last] = log.history(found.effect_id)
    assert (last.from_state, last.to_state, last.fence) == (state, state, 1)
    assert last.reason == "refused: owner of fence 1 reported completed"
    assert len(vendor.payments(ORDER)) == 1


@pytest.mark.parametrize("on_unknown", ["raise", "retry"])
def test_a_worker_suspended_before_its_body_claims_again(
    request_to_pay: Request, vendor: Vendor, log: EffectLog, on_unknown: Literal["raise", "retry"]
) -> None:
    """If the lease ended before the body began, another worker may have verified that nothing happened."""
    vendor.set_rules(ORDER, Rules(keys="ignore"))
    request = replace(request_to_pay, verify=on_unknown == "raise", on_unknown=on_unknown, lease=0.5)
    with started(run, replace(request, point="after claim", on_point="stand still")) as worker:
        assert worker.hear() == ("reached", "after claim")
        wait_until(lambda: bool(log.pending()))
        assert finish(replace(request, input=False))[0] == "finished"
        worker.say()
        assert worker.finish()[0] == "finished"

    assert len(vendor.payments(ORDER)) == 1
    assert [found.state for found in log.list()] == ["completed"]


def test_a_suspended_worker_continues_if_no_other_took_over(
    request_to_pay: Request, vendor: Vendor, log: EffectLog
) -> None:
    request = replace(request_to_pay, verify=False, lease=0.5)
    with started(run, replace(request, point="after claim", on_point="stand still")) as worker:
        assert worker.hear() == ("reached", "after claim")
        wait_until(lambda: bool(log.pending()))
        assert finish(replace(request, input=False))[0] == "EffectUnknownError"
        worker.say()
        assert worker.finish()[0] == "finished"

    [done] = log.list()
    assert (done.state, done.source, done.attempts) == ("completed", "executed", 2)
    assert len(vendor.payments(ORDER)) == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_workers_clocks_do_not_matter(
    request_to_pay: Request, vendor: Vendor, log: EffectLog, hours: int
) -> None:
    """A live owner is not treated as dead, nor a dead one as alive, if the workers' clocks are an hour off."""
    off = 3600.0 * hours
    request = replace(request_to_pay, lease=1.5, clock=-off)
    again = replace(request, input=False, clock=off)
    with started(run, replace(request, point="after response", on_point="stand still")) as worker:
        assert worker.hear() == ("reached", "after response")
        assert finish(replace(again, wait=0.3))[0] == "EffectInFlightError"
        worker.kill()
    assert finish(replace(again, wait=10))[0] == "finished"  # after the lease, not an hour later
    [done] = log.list()
    assert (done.state, done.source) == ("completed", "verified")
    assert len(vendor.payments(ORDER)) == 1


# --- in one process ---


def _calling(saver: DurableSaver | None, pay: Any, orders: list[str], message_id: str = "ai") -> Any:
    calls = [{"name": "pay", "args": {"order": order}, "id": f"call_{order}"} for order in orders]
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage("", id=message_id, tool_calls=calls)]})
    builder.add_node("tools", ToolNode([tool("pay")(pay)]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=saver)


async def test_a_pool_of_one_serves_four_effects_at_once(conninfo: str, vendor: Vendor, drive: Drive) -> None:
    together, arrived = threading.Barrier(4), 0
    all_there = asyncio.Event()

    @effect()
    def pay(order: str) -> str:
        """Pay."""
        together.wait(30)  # all four bodies run at once: none of them holds the connection
        return str(vendor.pay(order, CENTS, current_effect().idempotency_key)["payment"])

    @effect()
    async def apay(order: str) -> str:
        """Pay."""
        nonlocal arrived
        arrived += 1
        if arrived == 4:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), 30)
        answer = await asyncio.to_thread(vendor.pay, order, CENTS, current_effect().idempotency_key)
        return str(answer["payment"])

    orders = ["a", "b", "c", "d"]
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        graph = _calling(saver, apay if drive.asynchronous else pay, orders)
        result = await drive.invoke(graph, {"messages": []}, thread())

    assert [message.content for message in result["messages"][-4:]] == [f"{order}/0" for order in orders]


async def test_a_tool_that_blocks_its_loop_for_three_leases_keeps_its_lease(
    saver: DurableSaver, log: EffectLog
) -> None:
    lease = timedelta(seconds=1)

    @effect(lease=lease)
    async def pay(order: str) -> str:
        """Pay, blocking the loop."""
        until = time.monotonic() + 3 * lease.total_seconds()
        while time.monotonic() < until:
            assert log.pending() == []
            time.sleep(0.02)  # noqa: ASYNC251 (the point of it)
        return "paid"

    result = await _calling(saver, pay, [ORDER]).ainvoke({"messages": []}, thread())

    assert result["messages"][-1].content == "paid"
    [done] = log.list()
    assert [event.to_state for event in log.history(done.effect_id)] == ["issued", "completed"]


# --- possible duplicates ---


def test_a_repeated_input_waits_for_an_owner_that_may_be_dead(
    request_to_pay: Request, vendor: Vendor, log: EffectLog
) -> None:
    with started(run, replace(request_to_pay, point="after response", lease=2.0)) as worker:
        worker.die()

    # The model asks again, under another key, before the lease of the dead owner has ended.
    assert finish(request_to_pay)[0] == "finished"

    assert len(vendor.payments(ORDER)) == 1
    assert [found.source for found in log.list()] == ["verified", "verified"]


def test_calls_of_one_message_are_not_duplicates(saver: DurableSaver, vendor: Vendor) -> None:
    lost = [True]

    def look(record: EffectRecord) -> Happened | NotHappened:
        done = [p for p in vendor.payments(ORDER) if p["key"] == record.idempotency_key]
        return Happened(done[0]["payment"]) if done else NotHappened()

    @effect(verify=look)
    def pay(order: str) -> str:
        """Pay."""
        payment = vendor.pay(order, CENTS, current_effect().idempotency_key)["payment"]
        if lost and lost.pop():
            raise TimeoutError
        return str(payment)

    graph = _calling(saver, pay, [ORDER, ORDER])
    one_by_one: RunnableConfig = {**thread(), "max_concurrency": 1}
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": []}, one_by_one)
    result = graph.invoke(None, one_by_one)

    assert [message.content for message in result["messages"][-2:]] == [f"{ORDER}/0", f"{ORDER}/1"]
    assert len(vendor.payments(ORDER)) == 2


async def test_a_call_does_not_wait_for_its_own_process(saver: DurableSaver, vendor: Vendor) -> None:
    """Two agents in parallel subgraphs ask for the same: both calls are intended."""
    together = threading.Barrier(2)

    @effect(wait_timeout=0)
    def pay(order: str) -> str:
        """Pay."""
        together.wait(30)
        return str(vendor.pay(order, CENTS, current_effect().idempotency_key)["payment"])

    builder = StateGraph(MessagesState)
    for name in ("left", "right"):
        builder.add_node(name, _calling(None, pay, [ORDER], message_id=name))
        builder.add_edge(START, name)
    await builder.compile(checkpointer=saver).ainvoke({"messages": []}, thread())

    assert len(vendor.payments(ORDER)) == 2
