"""No effect is stuck: lost results are given, bodies that hang are left behind, decisions can be forced."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import (
    DurableSaver,
    EffectError,
    EffectPolicy,
    EffectUnknownError,
    Happened,
    NotHappened,
    current_effect,
    effect,
)
from langgraph_durable.errors import EffectInFlightError, EffectSupersededError, InvalidConfigError
from tests.effects import SCHEMA, Log, age
from tests.samples import Driver

EFFECT_ID = "0" * 26


@pytest.fixture
async def log(conninfo: str, drive: Driver) -> AsyncIterator[Log]:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        yield Log(saver, asynchronous=drive.kind == "async")


# --- results that are not stored ---


@pytest.mark.parametrize("result", ["receipt 4711", "r" * (2 << 20), None], ids=["small", "large", "none"])
async def test_a_lost_result_can_be_given(log: Log, result: str | None) -> None:
    assert isinstance(await log.run("pay", key="k", body=threading.Lock), type(threading.Lock()))
    effect_id = (await log.only()).effect_id
    with pytest.raises(EffectError, match=rf"resolve\('{effect_id}', Happened.*errors.md#result-lost$"):
        await log.run("pay", key="k", body=threading.Lock)

    record = await log.resolve(effect_id, Happened(result), note="from the dashboard", actor="ann")

    assert (record.state, record.result_lost, record.error) == ("completed", False, None)
    assert await log.run("pay", key="k", body=threading.Lock) == result
    event = (await log.history(effect_id))[-1]
    assert (event.from_state, event.to_state, event.actor) == ("completed", "completed", "ann")
    assert event.reason == "its result was given: from the dashboard"
    with pytest.raises(EffectError, match="needs no decision"):
        await log.resolve(effect_id, Happened("another"))


async def test_an_expired_result_can_be_given(log: Log, conninfo: str) -> None:
    await log.run("pay", key="k", body=lambda: "receipt")
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            f"UPDATE {SCHEMA}.effects SET expired_at = now(), result = NULL, result_type = NULL"
        )
    with pytest.raises(EffectError, match=r"has expired.*resolve\("):
        await log.run("pay", key="k", body=lambda: "receipt")
    await log.resolve((await log.only()).effect_id, Happened("receipt"))
    assert await log.run("pay", key="k", body=lambda: pytest.fail("it ran twice")) == "receipt"


@pytest.mark.parametrize("decision", [NotHappened(), "abandon"], ids=repr)
async def test_a_lost_result_does_not_make_the_effect_undone(log: Log, decision: Any) -> None:
    await log.run("pay", key="k", body=threading.Lock)
    with pytest.raises(EffectError, match="It took place"):
        await log.resolve((await log.only()).effect_id, decision)
    assert (await log.only()).state == "completed"


# --- bodies that have not run when they return ---


@pytest.mark.parametrize(
    "make",
    [
        Future,
        lambda: map(str, [1]),
        lambda: filter(None, [1]),
        lambda: zip([1], [2], strict=True),
        lambda: iter([1]),
        lambda: (number for number in [1]),
        lambda: [Future()],
        lambda: {"first": map(str, [1])},
        lambda: (Future(), 1),
        lambda: io.StringIO("lines are read lazily"),
    ],
    ids=["future", "map", "filter", "zip", "iterator", "generator", "futures", "dict", "tuple", "file"],
)
async def test_a_lazy_result_is_refused(log: Log, make: Callable[[], Any]) -> None:
    with pytest.raises(EffectError, match="runs after it returned"):
        await log.run("pay", key="k", body=make)
    assert (await log.only()).state == "unknown"


# --- bodies that hang ---


async def test_an_async_body_is_cancelled_after_its_timeout(saver: DurableSaver) -> None:
    ended: list[str] = []

    async def hang() -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    policy = EffectPolicy(timeout=0.1, failed_on=Exception)
    with pytest.raises(EffectUnknownError, match=r"did not end within the timeout=.*0:00:00\.1") as caught:
        await saver.effects.arun("pay", key="k", body=hang, policy=policy)
    assert ended == ["cleaned up"]
    [pending] = await saver.effects.apending()
    assert (pending.effect_id, pending.state) == (caught.value.effect_id, "unknown")
    assert pending.error == "did not end within its timeout of 0:00:00.100000"
    await saver.effects.aresolve(pending.effect_id, Happened("paid"))
    assert await saver.effects.arun("pay", key="k", body=hang, policy=policy) == "paid"


async def test_a_body_that_ends_in_time_is_completed(saver: DurableSaver) -> None:
    async def quick() -> str:
        await asyncio.sleep(0)
        return current_effect().effect_id

    policy = EffectPolicy(timeout=timedelta(seconds=30))
    effect_id = await saver.effects.arun("pay", key="k", body=quick, policy=policy)
    record = await saver.effects.aget(effect_id)
    assert record is not None
    assert record.state == "completed"

    async def fail() -> None:
        raise ValueError("sold out")

    with pytest.raises(ValueError, match="sold out"):
        await saver.effects.arun("pay", key="k2", body=fail, policy=policy.replace(failed_on=ValueError))
    assert [r.state for r in saver.effects.list(state="failed")] == ["failed"]


async def test_a_body_that_ends_although_cancelled_is_completed(saver: DurableSaver) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "paid"
        return "never"

    policy = EffectPolicy(timeout=0.1)
    assert await saver.effects.arun("pay", key="k", body=stubborn, policy=policy) == "paid"


async def test_a_body_that_ignores_its_cancellation_is_left_behind(saver: DurableSaver) -> None:
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("late")

    before = time.monotonic()
    with pytest.raises(EffectUnknownError):
        await saver.effects.arun("pay", key="k", body=stubborn, policy=EffectPolicy(timeout=0.1))
    assert time.monotonic() - before < 10
    assert [record.state for record in await saver.effects.apending()] == ["unknown"]
    release.set()
    await asyncio.sleep(0.01)


async def test_a_cancelled_caller_cancels_a_body_with_a_timeout(saver: DurableSaver) -> None:
    started = asyncio.Event()
    ended: list[str] = []

    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    running = asyncio.create_task(
        saver.effects.arun("pay", key="k", body=hang, policy=EffectPolicy(timeout=60))
    )
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["cleaned up"]
    assert [record.state for record in await saver.effects.apending()] == ["unknown"]


@pytest.mark.parametrize("decided", [False, True])
def test_a_sync_body_that_hangs_can_be_decided_on(saver: DurableSaver, decided: bool) -> None:
    """Its lease is no longer renewed after the timeout; its late end counts unless others decided."""
    policy = EffectPolicy(timeout=0.5, lease=0.6, wait_timeout=0)
    release = threading.Event()
    ends: list[Any] = []

    def hang() -> str:
        release.wait(60)
        return "late"

    def call() -> None:
        try:
            ends.append(saver.effects.run("pay", key="k", body=hang, policy=policy))
        except EffectError as exc:
            ends.append(type(exc))

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 30
    while not (pending := saver.effects.pending()):
        assert time.monotonic() < deadline, "the lease is renewed for ever"
        time.sleep(0.05)
    if decided:
        saver.effects.resolve(pending[0].effect_id, NotHappened())
        assert saver.effects.run("pay", key="k", body=lambda: "second", policy=policy) == "second"
    release.set()
    thread.join()
    assert ends == [EffectSupersededError if decided else "late"]
    assert [record.state for record in saver.effects.list()] == ["completed"]


def test_a_live_body_with_a_timeout_keeps_its_lease(saver: DurableSaver) -> None:
    policy = EffectPolicy(timeout=60, lease=0.3)
    saver.effects.run("pay", key="k", body=lambda: time.sleep(1.2), policy=policy)
    [record] = saver.effects.list()
    assert (record.state, record.attempts, len(saver.effects.history(record.effect_id))) == (
        "completed",
        1,
        2,
    )


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("inf")])
def test_timeouts_that_cannot_be_are_refused(timeout: Any) -> None:
    with pytest.raises(InvalidConfigError, match="timeout"):
        EffectPolicy(timeout=timeout)


# --- decisions by force ---


async def test_an_issued_effect_is_decided_only_by_force(log: Log) -> None:
    async with log.effect() as e:
        with pytest.raises(EffectError, match=r"renews its lease.*force=True.*--force"):
            await log.resolve(e.effect_id, NotHappened())
        record = await log.resolve(
            e.effect_id, "not_happened", note="the host burned", actor="ann", force=True
        )
        assert (record.state, record.fence) == ("failed", 3)
        async with log.effect() as second:
            assert second.idempotency_key == e.idempotency_key  # the first owner may still send its request
            await second.complete("second")
        with pytest.raises(EffectSupersededError, match=r"attempts: 2.*effects show"):
            await e.complete("first")
    moves = [(event.from_state, event.to_state) for event in await log.history(e.effect_id)]
    assert moves[:3] == [(None, "issued"), ("issued", "unknown"), ("unknown", "failed")]
    async with log.effect() as again:
        assert again.result == "second"


async def test_a_body_whose_end_was_decided_by_force_gets_the_decided_result(log: Log) -> None:
    async with log.effect() as e:
        await log.resolve(e.effect_id, Happened("seen on the dashboard"), force=True)
        await e.complete("returned")
        assert (e.replayed, e.result) == (True, "seen on the dashboard")


@pytest.mark.parametrize(("decision", "state"), [("happened", "completed"), ("not_happened", "failed")])
async def test_a_claimed_effect_is_decided_only_by_force(log: Log, decision: Any, state: str) -> None:
    async with log.effect(issued=False) as e:
        for options in ({}, {"force": True}):
            with pytest.raises(EffectError, match="Nothing was sent yet"):
                await log.resolve(e.effect_id, "abandon", **options)
        assert (await log.resolve(e.effect_id, decision, force=True)).state == state
        if state == "failed":
            with pytest.raises(EffectSupersededError):
                await e.issue()


async def test_force_needs_no_force(log: Log) -> None:
    await log.leave_unknown()
    record = await log.resolve((await log.only()).effect_id, Happened(1), force=True)
    assert (record.state, record.fence) == ("completed", 1)


async def test_waiting_for_a_live_owner_names_the_force(log: Log) -> None:
    async with log.effect() as e:
        with pytest.raises(EffectInFlightError, match=rf"resolve {e.effect_id} DECISION --force.*timeout="):
            async with log.effect(policy=EffectPolicy(wait_timeout=0)):
                pytest.fail("it ran beside the other")
        await e.complete()


# --- decisions in words ---


@pytest.mark.parametrize(
    ("word", "state"),
    [("happened", "completed"), ("not_happened", "failed"), ("retry", "failed"), ("abandon", "abandoned")],
)
async def test_decisions_are_accepted_in_words(log: Log, word: Any, state: str) -> None:
    await log.leave_unknown()
    assert (await log.resolve((await log.only()).effect_id, word)).state == state


class State(TypedDict, total=False):
    paid: str


def test_the_waiting_task_does_not_retry_what_was_declared_failed(saver: DurableSaver) -> None:
    paid: list[str] = []

    @effect()
    def pay(what: str) -> str:
        paid.append(what)
        if len(paid) == 1:
            raise TimeoutError("no answer")
        return what

    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"paid": pay("coffee")})
    builder.add_edge(START, "node")
    graph: Any = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "thread"}}
    with pytest.raises(TimeoutError):
        graph.invoke({}, config)
    [pending] = saver.effects.pending()
    record = saver.effects.resolve(pending.effect_id, "failed", note="the card expired")
    assert record.state == "failed"
    assert saver.effects.history(record.effect_id)[-1].reason == "failed: the card expired"
    for _ in range(2):
        with pytest.raises(EffectError, match=r"'pay'.*declared failed.*#declared-failed") as caught:
            graph.invoke(None, config)
        assert caught.value.effect_id == record.effect_id
    assert paid == ["coffee"]
    assert graph.invoke({}, config) == {"paid": "coffee"}  # another request


async def test_failed_is_refused_where_no_task_waits(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectError, match="outside of a graph"):
        await log.resolve((await log.only()).effect_id, "failed")
    assert (await log.only()).state == "unknown"


# --- ends that are hard to record ---


async def test_an_owner_whose_attempt_was_verified_gets_the_verified_result(log: Log, conninfo: str) -> None:
    """It had stopped, another process asked the provider, and both agree that it took place."""
    policy = EffectPolicy(verify=lambda record: Happened("verified"))
    async with log.effect(policy=policy) as e:
        age(conninfo)
        async with log.effect(policy=policy) as other:
            assert (other.replayed, other.result) == (True, "verified")
        await e.complete("executed")
        assert (e.replayed, e.result, e.source) == (True, "verified", "verified")
    events = await log.history(e.effect_id)
    assert [event.to_state for event in events] == ["issued", "unknown", "completed", "completed"]
    assert events[-1].reason == "owner of fence 1 reported completed, too"


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error has no text")


class NoArgsError(Exception):
    args = None  # type: ignore[assignment]


@pytest.mark.parametrize("error", [NoTextError, NoArgsError])
async def test_strange_exceptions_are_recorded_and_raised(log: Log, error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        await log.run("pay", key="k", body=fail)
    record = await log.only()
    assert record.state == "unknown"
    assert record.error is not None
    assert record.error.startswith(error.__name__)


async def test_a_verify_without_text_in_its_error_is_reported(log: Log) -> None:
    def verify(record: Any) -> Any:
        raise NoTextError

    await log.leave_unknown()
    with pytest.raises(EffectUnknownError, match="no text: RuntimeError"):
        async with log.effect(policy=EffectPolicy(verify=verify)):
            pytest.fail("it ran twice")


async def test_a_sync_verify_does_not_block_the_event_loop(saver: DurableSaver) -> None:
    log = Log(saver, asynchronous=True)
    await log.leave_unknown()
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def verify(record: Any) -> Happened:
        # Returns only if the loop runs meanwhile.
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(asked.wait(), loop).result(10)
        return Happened("found")

    async with log.effect(policy=EffectPolicy(verify=verify)) as e:
        assert e.result == "found"


def test_current_effect_in_a_new_thread_names_the_remedy() -> None:
    said: list[str] = []

    def call() -> None:
        try:
            current_effect()
        except EffectError as exc:
            said.append(str(exc))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "copy_context" in said[0]
