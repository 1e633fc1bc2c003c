"""The effect log by hand: what each end means, what is kept, what is refused, what a replay costs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr
from typing_extensions import TypedDict

from langgraph_durable import (
    IDEMPOTENT,
    READ_ONLY,
    DurableError,
    DurableSaver,
    EffectAbandoned,
    EffectConflict,
    EffectError,
    EffectInFlight,
    EffectLog,
    EffectPolicy,
    EffectSuperseded,
    EffectUnknown,
    Happened,
    InvalidConfig,
    NotHappened,
    Undetermined,
    current_effect,
    effect,
)
from langgraph_durable import _effects_ops as ops
from langgraph_durable.effects._guard import Guard
from tests.effects import SCHEMA, Log, age, next_transaction
from tests.proxy import Proxy
from tests.samples import Driver

SECRET = "the-secret-card-4711"
NO_ID = "0" * 26


@pytest.fixture
async def log(conninfo: str, drive: Driver) -> AsyncIterator[Log]:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        yield Log(saver, asynchronous=drive.kind == "async")


class Paid(NamedTuple):
    payment: str
    cents: int


def verified(*findings: Any) -> EffectPolicy:
    """A policy whose verify finds one thing after the other."""
    left = iter(findings)
    return EffectPolicy(verify=lambda record: next(left))


# --- ends ---


async def test_an_effect_that_completes(log: Log) -> None:
    async with log.effect(args={"cents": 5}, issued=False) as e:
        assert (e.replayed, e.result, e.attempts, e.state) == (False, None, 1, "claimed")
        assert current_effect().effect_id == e.effect_id
        await e.issue()
        assert e.state == "issued"
        await e.complete({"id": 1})
        assert (e.state, e.result) == ("completed", {"id": 1})
    async with log.effect(args={"cents": 5}) as again:
        assert (again.replayed, again.result, again.effect_id) == (True, {"id": 1}, e.effect_id)
        assert (again.source, again.attempts, again.vendor_key) == ("executed", 1, e.vendor_key)
    assert await log.moves() == [(None, "claimed"), ("claimed", "issued"), ("issued", "completed")]
    record = await log.only()
    assert (record.tool, record.args, record.scope) == ("pay", {"cents": 5}, "key")
    assert record.thread_id is None
    assert record.ended_at is not None
    assert record.first_attempt_at == e.first_attempt_at
    with pytest.raises(EffectError, match="no effect runs here"):
        current_effect()


async def test_an_effect_begins_as_issued(log: Log, conninfo: str) -> None:
    """Whoever says nothing may be killed after the vendor's call: it may have happened."""
    async with log.effect() as e:
        assert e.state == "issued"
        age(conninfo)
        with pytest.raises(EffectUnknown):
            async with log.effect():
                pytest.fail("it ran twice")
        await e.complete(1)
    assert await log.moves() == [(None, "issued"), ("issued", "unknown"), ("unknown", "completed")]


async def test_issue_of_what_is_issued_makes_sure_that_it_is_ours(log: Log, conninfo: str) -> None:
    async with log.effect() as e:
        age(conninfo)
        await e.issue()
        assert await log.pending() == [], "its lease was renewed"
        age(conninfo)
        await log.resolve(e.effect_id, NotHappened())
        with pytest.raises(EffectSuperseded):
            await e.issue()
    assert (await log.only()).state == "failed"


async def test_completed_without_issue(log: Log) -> None:
    async with log.effect(issued=False) as e:
        await e.complete(1)
    assert await log.moves() == [(None, "claimed"), ("claimed", "completed")]


async def test_a_replayed_effect_cannot_be_reported_again(log: Log) -> None:
    async with log.effect() as e:
        await e.complete(1)
    async with log.effect() as e:
        for report in (e.issue(), e.complete(2), e.fail("no")):
            with pytest.raises(EffectError, match="took place before"):
                await report
    assert (await log.only()).state == "completed"


async def test_fail_means_that_it_did_not_happen(log: Log) -> None:
    async with log.effect() as first:
        await first.issue()
        await first.fail("declined")
    record = await log.only()
    assert (record.state, record.error, record.generation) == ("failed", "declined", 0)
    async with log.effect() as second:
        assert (second.replayed, second.attempts) == (False, 2)
        assert second.vendor_key != first.vendor_key  # vendors replay saved errors
        await second.complete("paid")
    record = await log.only()
    assert (record.state, record.generation, record.fence, record.error) == ("completed", 1, 2, None)


@pytest.mark.parametrize("issued", [False, True])
async def test_leaving_without_saying_how_it_ended(log: Log, issued: bool) -> None:
    async with log.effect(issued=False) as e:
        if issued:
            await e.issue()
    record = await log.only()
    assert record.state == ("unknown" if issued else "failed")
    assert "left without complete()" in str(record.error)


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (ValueError("odd"), "failed", "unknown"),
        (TimeoutError(), "failed", "unknown"),
        (asyncio.CancelledError(), "failed", "unknown"),
        (SystemExit(1), "failed", "unknown"),
        (KeyboardInterrupt(), "failed", "unknown"),
        (ConnectionRefusedError(), "failed", "failed"),
        (ConnectionResetError(), "failed", "unknown"),
        (LookupError("declined"), "failed", "failed"),
        (KeyError("declined"), "failed", "failed"),
    ],
    ids=repr,
)
async def test_exceptions_before_and_after_issue(
    log: Log, error: BaseException, before: str, after: str
) -> None:
    policy = EffectPolicy(failed_on=(LookupError,))
    for key, issue, state in (("a", False, before), ("b", True, after)):
        with pytest.raises(type(error)) as caught:
            async with log.effect(key=key, policy=policy, issued=False) as e:
                if issue:
                    await e.issue()
                raise error
        assert caught.value is error
        record = await log.get(e.effect_id)
        assert record is not None
        assert record.state == state
        assert str(record.error).startswith(type(error).__name__)


class HttpError(Exception):
    """Holds what went wrong below it, as HTTP clients do, by its cause or by its first argument."""


async def test_a_refused_connection_below_other_errors_is_definite(log: Log) -> None:
    async def refused(key: str) -> None:
        async with log.effect(key=key) as e:
            await e.issue()
            try:
                raise ConnectionRefusedError("nobody listens")
            except ConnectionRefusedError as exc:
                if key == "cause":
                    raise HttpError("could not connect") from exc
                raise HttpError(exc)  # noqa: B904 (as requests does)

    for key in ("cause", "argument"):
        with pytest.raises(HttpError):
            await refused(key)
    assert [r.state for r in await log.list()] == ["failed", "failed"]


async def test_a_refused_connection_keeps_the_vendors_key(log: Log, conninfo: str) -> None:
    """It may be the second one, after what was sent over the first: the vendor is to know that again."""
    keys = []
    for error in (ConnectionRefusedError("down"), ConnectionRefusedError("down"), LookupError("declined")):
        with pytest.raises(type(error)):
            async with log.effect(policy=EffectPolicy(failed_on=LookupError)) as e:
                keys.append(e.vendor_key)
                await e.issue()
                raise error
    async with log.effect() as e:
        keys.append(e.vendor_key)
        assert e.attempts == 4
        await e.complete()
    assert keys[0] == keys[1] == keys[2] != keys[3]
    with psycopg.connect(conninfo) as connection:  # what is remembered does not grow with the attempts
        [(asked,)] = connection.execute("SELECT asked FROM langgraph_durable.effects").fetchall()
    assert [memory.partition(" ")[0] for memory in asked] == ["claim"]


async def test_a_refused_connection_that_was_handled_proves_nothing(log: Log) -> None:
    async def second_host() -> None:
        async with log.effect() as e:
            await e.issue()
            try:
                raise ConnectionRefusedError("the first host is down")
            except ConnectionRefusedError:
                raise TimeoutError("the second host did not answer")  # noqa: B904 (that is the case)

    with pytest.raises(TimeoutError):
        await second_host()
    assert (await log.only()).state == "unknown"


async def test_an_error_after_complete_changes_nothing(log: Log) -> None:
    with pytest.raises(ValueError, match="later"):
        async with log.effect() as e:
            await e.issue()
            await e.complete(1)
            raise ValueError("later")
    assert (await log.only()).state == "completed"


async def test_error_texts_that_postgres_cannot_hold(log: Log) -> None:
    with pytest.raises(ConnectionRefusedError):
        async with log.effect() as e:
            await e.issue()
            raise ConnectionRefusedError("a\0b \ud800 c")
    assert (await log.only()).state == "failed"
    async with log.effect() as e:
        await e.fail("a\0b \ud800 c")
    assert (await log.only()).state == "failed"


# --- results ---


@pytest.mark.parametrize(
    "result",
    [None, 0, "", [], {"a": [1, 2]}, b"\0\xff", "ü\0", "x" * (1 << 20), "y" * (3 << 20)],
    ids=lambda result: repr(result)[:12] + str(len(repr(result))),
)
async def test_results_come_back_as_they_were(log: Log, conninfo: str, result: Any) -> None:
    async with log.effect() as e:
        await e.issue()
        await e.complete(result)
    async with log.effect() as again:
        assert again.replayed
        assert again.result == result
        assert type(again.result) is type(result)
    with psycopg.connect(conninfo) as connection:
        apart = connection.execute(f"SELECT count(*) FROM {SCHEMA}.effect_results").fetchone()
    assert apart == (1 if len(repr(result)) > 1 << 20 else 0,)


async def test_a_named_tuple_comes_back(log: Log) -> None:
    @effect(key="k", log=log.inner)
    def pay() -> Paid:
        return Paid("p1", 500)

    assert pay() == pay() == Paid("p1", 500)


async def test_a_result_that_cannot_be_stored_is_never_run_for_again(log: Log) -> None:
    async with log.effect() as e:
        await e.issue()
        await e.complete(threading.Lock())
    record = await log.only()
    assert (record.state, record.result_lost) == ("completed", True)
    with pytest.raises(EffectError, match="not run again"):
        async with log.effect():
            pytest.fail("it ran again")


def everything(conninfo: str) -> bytes:
    found = b""
    with psycopg.connect(conninfo) as connection:
        for table in ("effects", "effect_results", "effect_events"):
            for row in connection.execute(f"SELECT * FROM {SCHEMA}.{table}"):
                found += b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
    return found


async def test_encrypted(log: Log, conninfo: str) -> None:
    log.saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    async with log.effect(key=SECRET, args={"card": SECRET}) as e:
        await e.complete([SECRET])
    async with log.effect(key="large", args=[SECRET]) as e:
        await e.complete(SECRET * 60_000)
    async with log.effect(key="lost", args=[SECRET]) as e:
        await e.complete({SECRET: threading.Lock()})
    for key, issue in (("failed", False), ("unknown", True)):
        with pytest.raises(ValueError, match=SECRET):
            async with log.effect(key=key, args=SECRET, issued=False) as e:
                if issue:
                    await e.issue()
                raise ValueError(f"bad card {SECRET}")
    await log.resolve((await log.pending())[0].effect_id, Happened({"card": SECRET}))
    assert SECRET.encode() not in everything(conninfo)
    async with log.effect(key=SECRET, args={"card": SECRET}) as e:
        assert e.result == [SECRET]
    async with log.effect(key="large", args=[SECRET]) as e:
        assert e.result == SECRET * 60_000
    async with log.effect(key="unknown", args=SECRET) as e:
        assert e.result == {"card": SECRET}
    assert [r.args for r in await log.list()] == [{"card": SECRET}, [SECRET], [SECRET], SECRET, SECRET]


# --- claims ---


@pytest.mark.parametrize("state", ["claimed", "completed", "failed", "unknown"])
async def test_the_same_key_with_other_arguments(log: Log, state: str) -> None:
    with pytest.raises(EffectConflict, match="other arguments"):
        async with log.effect(args={"cents": 5}) as e:
            if state in ("completed", "failed"):
                await (e.complete(1) if state == "completed" else e.fail("no"))
            elif state == "unknown":
                await e.issue()
                e.inner._attempt.row = e.inner._attempt.row._replace(fence=-1)  # its end is not recorded
                with pytest.raises(EffectSuperseded):
                    await e.complete(1)
            async with log.effect(args={"cents": 6}):
                pytest.fail("it ran")
    assert len(await log.list()) == 1


async def test_arguments_are_compared_by_what_they_say(log: Log) -> None:
    async with log.effect(args={"a": 1, "b": [1, 2]}) as e:
        await e.complete(1)
    async with log.effect(args={"b": (1, 2), "a": 1}) as e:
        assert e.replayed
    for other in ({"a": 1}, {"a": "1", "b": [1, 2]}, {"a": 1, "b": [2, 1]}, None):
        with pytest.raises(EffectConflict):
            async with log.effect(args=other):
                pytest.fail("it ran")


async def test_an_effect_that_goes_on_elsewhere(log: Log) -> None:
    async with log.effect() as e:
        with pytest.raises(EffectInFlight, match="still goes on"):
            async with log.effect(policy=EffectPolicy(wait=timedelta(milliseconds=50))):
                pytest.fail("it ran twice")
        await e.complete(1)


async def test_one_that_waits_gets_the_outcome(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = EffectLog.from_saver(saver)
        waiting = asyncio.Event()

        async def wait() -> Any:
            waiting.set()
            async with log.aeffect("pay", key="k") as e:
                return e.replayed, e.result

        async with log.aeffect("pay", key="k") as e:
            await e.issue()
            waiter = asyncio.create_task(wait())
            await waiting.wait()
            await e.complete("paid")
        assert await waiter == (True, "paid")


async def test_many_at_once_run_it_once(conninfo: str) -> None:
    ran = []
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = EffectLog.from_saver(saver)

        async def one(number: int) -> Any:
            async with log.aeffect("pay", key="k") as e:
                if not e.replayed:
                    ran.append(number)
                    await e.issue()
                    await e.complete(number)
                return e.result

        results = await asyncio.gather(*(one(n) for n in range(16)))
    assert set(results) == set(ran)
    assert len(ran) == 1


async def test_a_claim_whose_lease_ended_is_taken_over(log: Log, conninfo: str) -> None:
    with pytest.raises(EffectSuperseded):
        async with log.effect(issued=False) as first:
            age(conninfo)
            async with log.effect(issued=False) as second:
                assert not second.replayed
                assert second.vendor_key == first.vendor_key  # nothing was sent
                await second.complete("second")
            await first.complete("first")
    assert (await log.only()).attempts == 2
    async with log.effect() as e:
        assert e.result == "second"
    refused = (await log.history(e.effect_id))[-1]
    assert (refused.from_state, refused.to_state, refused.fence) == ("completed", "completed", 1)
    assert "refused" in str(refused.reason)


async def test_an_issued_effect_whose_lease_ended_is_unknown_and_its_late_owner_believed(
    log: Log, conninfo: str
) -> None:
    async with log.effect() as first:
        await first.issue()
        age(conninfo)
        assert [r.effect_id for r in await log.pending()] == [first.effect_id]
        with pytest.raises(EffectUnknown, match="resolve") as caught:
            async with log.effect():
                pytest.fail("it ran twice")
        assert caught.value.effect_id == first.effect_id
        assert (await log.only()).state == "unknown"
        await first.complete("late")
    async with log.effect() as e:
        assert (e.replayed, e.result) == (True, "late")
    assert (await log.moves())[-2:] == [("issued", "unknown"), ("unknown", "completed")]


async def test_a_late_owner_is_refused_after_a_decision(log: Log, conninfo: str) -> None:
    with pytest.raises(EffectSuperseded):
        async with log.effect() as first:
            await first.issue()
            age(conninfo)
            await log.resolve(first.effect_id, NotHappened(), note="looked it up", actor="ann")
            await first.complete("late")
    assert (await log.only()).state == "failed"


async def test_a_claim_whose_answer_was_lost_is_still_ours(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        await log.list()
        async with log.effect(key="warm") as e:
            await e.issue()
            await e.complete("paid")
        quick = EffectPolicy(wait=timedelta(seconds=1))
        proxy.lose_next_answer()
        async with log.effect(policy=quick, issued=False) as e:
            assert (e.replayed, e.attempts) == (False, 1)
            await e.issue()
            proxy.lose_next_answer()
            await e.complete("paid")
        moves = [(move.from_state, move.to_state) for move in await log.history(e.effect_id)]
        assert moves == [(None, "claimed"), ("claimed", "issued"), ("issued", "completed")]


@pytest.mark.parametrize("issued", [False, True], ids=["failed", "unknown"])
async def test_another_claim_whose_answer_was_lost_is_still_ours(
    conninfo: str, proxy: Proxy, drive: Driver, issued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before_claim(guard: Guard) -> None:
        if losing and not issued:
            proxy.lose_next_answer()

    def before_taking_over(record: Any) -> Undetermined:
        if losing:
            proxy.lose_next_answer()
        return Undetermined()

    monkeypatch.setattr(Guard, "_await_checkpoints", before_claim)
    policy = EffectPolicy(verify=before_taking_over, on_unknown="retry", wait=timedelta(seconds=1))
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        for key in ("warm", "k"):
            losing = False
            with pytest.raises(TimeoutError):
                async with log.effect(key=key, issued=False) as e:
                    if issued:
                        await e.issue()
                    raise TimeoutError("no answer")
            losing = key == "k"
            async with log.effect(key=key, policy=policy) as e:
                assert (e.replayed, e.attempts) == (False, 2)
                await e.issue()
                await e.complete("paid")


async def test_an_issue_whose_answer_was_lost_may_have_been_sent(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.effect("warm") as e:
            await e.issue()
            await e.complete()
        with pytest.raises(TimeoutError):
            async with log.effect(issued=False) as e:
                proxy.lose_next_answer()
                await e.issue()
                assert e.state == "issued"
                raise TimeoutError("no answer from the vendor")
        with pytest.raises(EffectUnknown):
            async with log.effect():
                pytest.fail("it ran twice")


# --- unknown ---


async def test_unknown_is_not_tried_again(log: Log) -> None:
    await log.leave_unknown()
    for _ in range(2):
        with pytest.raises(EffectUnknown):
            async with log.effect():
                pytest.fail("it ran twice")
    assert (await log.only()).attempts == 1


async def test_verify_finds_that_it_happened(log: Log) -> None:
    key = await log.leave_unknown(args={"cents": 5})
    seen = []

    def verify(record: Any) -> Happened:
        seen.append(record)
        return Happened({"id": 7})

    async with log.effect(args={"cents": 5}, policy=EffectPolicy(verify=verify)) as e:
        assert (e.replayed, e.result, e.source) == (True, {"id": 7}, "verified")
    assert (seen[0].state, seen[0].args, seen[0].vendor_key) == ("unknown", {"cents": 5}, key)
    assert seen[0].error == "TimeoutError: no answer"
    assert len(seen) == 1


async def test_verify_finds_that_it_did_not_happen(log: Log) -> None:
    key = await log.leave_unknown()
    async with log.effect(policy=verified(NotHappened())) as e:
        assert (e.replayed, e.attempts) == (False, 2)
        assert e.vendor_key != key  # a definite failure
        await e.issue()
        await e.complete(2)
    assert ("unknown", "failed") in await log.moves()
    assert (await log.only()).fence == 3


async def test_not_happened_is_not_believed_before_settle(log: Log, conninfo: str) -> None:
    await log.leave_unknown()
    calls = []

    def verify(record: Any) -> NotHappened:
        calls.append(record)
        return NotHappened()

    slow = EffectPolicy(verify=verify, settle=timedelta(hours=1), wait=timedelta(milliseconds=10))
    with pytest.raises(EffectUnknown):
        async with log.effect(policy=slow):
            pytest.fail("it ran twice")
    age(conninfo, timedelta(hours=2))
    async with log.effect(policy=slow) as e:
        await e.complete(1)
    assert len(calls) == 2


@pytest.mark.parametrize("silent", [True, False])
async def test_settle_counts_from_the_end_of_an_attempt(log: Log, conninfo: str, silent: bool) -> None:
    """A body that takes an hour may send what it sends at its end."""
    slow = replace(verified(NotHappened(), NotHappened()), settle=timedelta(minutes=30), wait=timedelta(0))

    async def try_again() -> None:
        with pytest.raises(EffectUnknown):
            async with log.effect(policy=slow):
                pytest.fail("it ran twice")
        age(conninfo)
        async with log.effect(policy=slow) as e:
            await e.complete("again")

    with pytest.raises(TimeoutError):
        async with log.effect() as e:
            await e.issue()
            age(conninfo)
            if silent:
                with psycopg.connect(conninfo) as connection:
                    connection.execute(
                        f"UPDATE {SCHEMA}.effects SET lease_until = now() - interval '1 second'"
                    )
                await try_again()
            raise TimeoutError("no answer")
    if not silent:
        await try_again()


async def test_settle_is_waited_for_if_there_is_time(log: Log) -> None:
    await log.leave_unknown()
    policy = replace(verified(NotHappened(), NotHappened()), settle=timedelta(milliseconds=300))
    async with log.effect(policy=policy) as e:
        record = await log.only()
        assert record.attempted_at - record.first_attempt_at >= timedelta(milliseconds=300)
        await e.complete(1)


async def test_undetermined_asks_again_in_time(log: Log) -> None:
    await log.leave_unknown()
    soon = Undetermined(retry_in=timedelta(milliseconds=1))
    async with log.effect(policy=verified(soon, soon, Happened(3))) as e:
        assert e.result == 3


@pytest.mark.parametrize("finding", [Undetermined(), Undetermined(retry_in=timedelta(hours=1))], ids=repr)
async def test_undetermined_too_long(log: Log, finding: Undetermined) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectUnknown):
        async with log.effect(policy=verified(finding)):
            pytest.fail("it ran twice")
    assert (await log.only()).state == "unknown"


async def test_a_verify_that_raises(log: Log) -> None:
    await log.leave_unknown()

    def verify(record: Any) -> Happened:
        raise OSError("the vendor is down")

    with pytest.raises(EffectUnknown, match="the vendor is down") as caught:
        async with log.effect(policy=EffectPolicy(verify=verify)):
            pytest.fail("it ran twice")
    assert isinstance(caught.value.__cause__, OSError)
    assert (await log.only()).state == "unknown"


async def test_a_verify_that_returns_something_else(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectError, match="return Happened"):
        async with log.effect(policy=verified(True)):
            pytest.fail("it ran twice")
    assert (await log.only()).state == "unknown"


async def test_an_async_verify(log: Log) -> None:
    await log.leave_unknown()

    async def verify(record: Any) -> Happened:
        await asyncio.sleep(0)
        return Happened(4)

    policy = EffectPolicy(verify=verify)
    if log.asynchronous:
        async with log.effect(policy=policy) as e:
            assert e.result == 4
        return
    with pytest.raises(EffectError, match="verify of 'pay' is async"):
        async with log.effect(policy=policy):
            pytest.fail("it ran twice")


async def test_an_async_verify_hidden_in_a_callable(log: Log) -> None:
    await log.leave_unknown()

    async def find() -> Happened:
        await asyncio.sleep(0)
        return Happened(4)

    policy = EffectPolicy(verify=lambda record: find())
    if log.asynchronous:
        async with log.effect(policy=policy) as e:
            assert e.result == 4
        return
    with pytest.raises(EffectError, match="verify of 'pay' is async"):
        async with log.effect(policy=policy):
            pytest.fail("it ran twice")


async def test_retry_keeps_the_vendors_key_within_its_window(log: Log, conninfo: str) -> None:
    retry = EffectPolicy(on_unknown="retry", vendor_window=timedelta(hours=24))
    key = await log.leave_unknown(policy=retry)
    async with log.effect(policy=retry) as e:
        assert (e.replayed, e.attempts, e.vendor_key) == (False, 2, key)
        assert e.state == "issued"  # from here on it may have been sent, again
        await e.complete(1)
    assert (await log.moves())[-2:] == [("unknown", "issued"), ("issued", "completed")]
    await log.leave_unknown(key="old", policy=retry)
    age(conninfo, timedelta(hours=25))
    with pytest.raises(EffectUnknown):
        async with log.effect(key="old", policy=retry):
            pytest.fail("the vendor has forgotten its key")


async def test_the_vendors_window_begins_with_the_first_attempt_under_its_key(
    log: Log, conninfo: str
) -> None:
    retry = EffectPolicy(on_unknown="retry", vendor_window=timedelta(hours=24))
    await log.leave_unknown(policy=retry)
    age(conninfo, timedelta(hours=23))
    await log.leave_unknown(policy=retry)
    age(conninfo, timedelta(hours=23))
    with pytest.raises(EffectUnknown):
        async with log.effect(policy=retry):
            pytest.fail("the vendor has the key since 46 hours")


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError, KeyError, GraphInterrupt], ids=["refused", "failed_on", "interrupt"]
)
@pytest.mark.parametrize("again", [EffectPolicy(on_unknown="retry"), IDEMPOTENT], ids=["retry", "idempotent"])
async def test_a_failure_tells_nothing_of_the_attempt_before(
    log: Log, again: EffectPolicy, error: type[Exception]
) -> None:
    """It stays unknown, under the same key, or a vendor that did it the first time would do it twice."""
    again = again.but(failed_on=KeyError)
    key = await log.leave_unknown(policy=again)
    with pytest.raises(error):
        async with log.effect(policy=again):
            raise error
    record = await log.only()
    assert (record.state, record.generation) == ("unknown", 0)
    async with log.effect(policy=again) as e:
        assert (e.attempts, e.vendor_key) == (3, key)
        await e.complete(1)


def keyed(log: Log, *errors: Exception, **options: Any) -> Callable[[], Any]:
    """A decorated function, run at once, whose body fails by one error after the other; and then does not."""
    left = list(errors)

    def act() -> Any:
        keys.append(current_effect().vendor_key)
        if left:
            raise left.pop(0)
        return keys

    keys: list[str] = []
    decorate = effect(key="k", log=log.inner, **options)
    if log.asynchronous:

        async def aact() -> Any:
            return act()

        return decorate(aact)

    async def acted() -> Any:
        return guarded()

    guarded = decorate(act)
    return acted


async def test_what_was_not_sent_keeps_the_key_of_what_waited(log: Log) -> None:
    """A tool may send, ask a human, and send again when it is run again: the vendor knows it by its key."""
    act = keyed(log, GraphInterrupt(), ConnectionRefusedError())
    for error in (GraphInterrupt, ConnectionRefusedError):
        with pytest.raises(error):
            await act()
        assert (await log.only()).state == "suspended"
    keys = await act()
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_who_claims_what_waited_and_dies_keeps_its_key(log: Log, conninfo: str) -> None:
    act = keyed(log, GraphInterrupt(), ConnectionRefusedError())
    with pytest.raises(GraphInterrupt):
        await act()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        # As a claim leaves it whose owner was killed.
        connection.execute(
            "UPDATE langgraph_durable.effects SET state = 'claimed', previous_state = 'suspended', owner = 'dead', "
            "lease_until = now() - interval '1 s'"
        )
    with pytest.raises(ConnectionRefusedError):
        await act()
    assert (await log.only()).state == "suspended"
    keys = await act()
    assert len(keys) == 3
    assert len(set(keys)) == 1


# --- what may have reached the vendor ---


async def test_a_refused_connection_is_verified(log: Log) -> None:
    """It may be the second one: the first was cut off when the vendor restarted, after it had committed."""
    found: list[Any] = [NotHappened(), Happened("found")]
    policy = EffectPolicy(verify=lambda record: found.pop(0))
    keys = []
    for _ in range(2):
        with pytest.raises(HttpError):
            async with log.effect(policy=policy) as e:
                keys.append(e.vendor_key)
                await e.issue()
                raise HttpError(ConnectionRefusedError("refused"))
        assert (await log.only()).state == "unknown"
    async with log.effect(policy=policy) as e:
        assert (e.replayed, e.result, e.source) == (True, "found", "verified")
    assert keys[0] == keys[1], "what the first connection may have sent, the vendor must know again"
    assert found == []


async def test_a_refused_connection_that_is_listed_is_definite(log: Log) -> None:
    policy = replace(verified(), failed_on=ConnectionRefusedError)
    with pytest.raises(ConnectionRefusedError):
        async with log.effect(policy=policy):
            raise ConnectionRefusedError
    assert (await log.only()).state == "failed"
    async with log.effect(policy=policy) as e:
        await e.complete(1)


@pytest.mark.parametrize("finding", [Happened("found"), NotHappened(), Undetermined()], ids=repr)
async def test_what_waited_after_it_had_begun_is_verified(log: Log, finding: Any) -> None:
    seen = []

    def find(record: Any) -> Any:
        seen.append(record)
        return finding

    act = keyed(log, GraphInterrupt(), verify=find)
    with pytest.raises(GraphInterrupt):
        await act()
    assert ((await log.only()).state, await log.pending(), seen) == ("suspended", [], [])
    if isinstance(finding, Undetermined):
        with pytest.raises(EffectUnknown):
            await act()
        return
    result = await act()
    assert len(seen) == 1
    if isinstance(finding, Happened):
        assert result == "found"
        return
    assert len(result) == 2
    assert result[0] == result[1], "it did not fail: the vendor must know it again"


async def test_settle_counts_from_when_it_waited(log: Log, conninfo: str) -> None:
    policy = replace(verified(NotHappened(), NotHappened()), settle=timedelta(minutes=30), wait=timedelta(0))
    act = keyed(log, GraphInterrupt(), policy=policy)
    with pytest.raises(GraphInterrupt):
        await act()
    with psycopg.connect(conninfo) as connection:  # the body took an hour
        connection.execute(f"UPDATE {SCHEMA}.effects SET attempted_at = attempted_at - interval '1 hour'")
    with pytest.raises(EffectUnknown):
        await act()
    age(conninfo)
    assert len(await act()) == 2


async def test_an_idempotent_tool_that_waited_runs_again(log: Log) -> None:
    act = keyed(log, GraphInterrupt(), policy=replace(verified(), idempotent=True))
    with pytest.raises(GraphInterrupt):
        await act()
    assert len(await act()) == 2


@pytest.mark.parametrize("issued", [False, True])
@pytest.mark.parametrize("finding", [Happened("found"), NotHappened(), None], ids=repr)
async def test_waiting_by_hand_after_issue_is_unknown(log: Log, issued: bool, finding: Any) -> None:
    policy = verified(finding) if finding is not None else EffectPolicy()
    options: dict[str, Any] = {} if issued else {"issued": False}
    with pytest.raises(GraphInterrupt):
        async with log.effect(policy=policy, **options) as first:
            await first.issue()
            raise GraphInterrupt
    assert (await log.only()).state == "unknown"
    if finding is None:
        with pytest.raises(EffectUnknown):
            async with log.effect(policy=policy):
                pytest.fail("it ran twice")
        return
    async with log.effect(policy=policy) as e:
        assert e.vendor_key == first.vendor_key
        assert (e.replayed, e.result) == ((True, "found") if finding != NotHappened() else (False, None))
        if not e.replayed:
            await e.complete()


async def test_waiting_by_hand_before_issue_is_not_asked_about(log: Log) -> None:
    with pytest.raises(GraphInterrupt):
        async with log.effect(policy=verified(), issued=False) as first:
            raise GraphInterrupt
    assert (await log.only()).state == "suspended"
    async with log.effect(policy=verified(), issued=False) as e:
        assert (e.replayed, e.vendor_key) == (False, first.vendor_key)
        await e.complete()


# --- the vendor's key ---


@pytest.mark.parametrize("by", ["verify", "human", "human, before anyone came"])
async def test_an_owner_that_only_stood_still_pays_under_the_key_of_the_next(
    log: Log, conninfo: str, by: str
) -> None:
    """What it is about to send comes after whoever looked found nothing: the vendor must know the two for one."""
    with pytest.raises(EffectSuperseded):
        async with log.effect() as stopped:
            await stopped.issue()
            age(conninfo)
            if by == "human":
                with pytest.raises(EffectUnknown):
                    async with log.effect():
                        pytest.fail("it ran twice")
            if by != "verify":
                await log.resolve(stopped.effect_id, NotHappened())
            async with log.effect(policy=verified(NotHappened())) as e:
                assert not e.replayed
                assert e.vendor_key == stopped.vendor_key
                await e.complete("paid")
            await stopped.complete("paid, too")


async def test_a_cancelled_attempt_keeps_the_vendors_key(log: Log) -> None:
    """A thread that it started goes on."""
    with pytest.raises(asyncio.CancelledError):
        async with log.effect() as first:
            await first.issue()
            raise asyncio.CancelledError
    async with log.effect(policy=verified(NotHappened())) as e:
        assert e.vendor_key == first.vendor_key
        await e.complete()


async def test_the_key_changes_once_an_attempt_that_ended_is_found_to_have_failed(
    log: Log, conninfo: str
) -> None:
    """An error that the vendor saved under the key, and whose answer was lost, is not replayed for ever."""
    with pytest.raises(EffectSuperseded):
        async with log.effect() as stopped:
            await stopped.issue()
            age(conninfo)
            with pytest.raises(TimeoutError):
                async with log.effect(policy=verified(NotHappened())):
                    raise TimeoutError
            async with log.effect(policy=verified(NotHappened())) as e:
                assert e.vendor_key != stopped.vendor_key
                await e.complete()
            await stopped.complete()


async def test_a_history_tells_of_claims_that_died_after_a_wait(log: Log, conninfo: str) -> None:
    with pytest.raises(GraphInterrupt):
        async with log.effect(issued=False):
            raise GraphInterrupt
    async with log.effect(issued=False):
        age(conninfo)
        async with log.effect(issued=False) as e:
            await e.complete(1)
    assert (await log.moves())[:5] == [
        (None, "claimed"),
        ("claimed", "suspended"),
        ("suspended", "claimed"),
        ("claimed", "claimed"),
        ("claimed", "completed"),
    ]


async def test_idempotent_is_run_again(log: Log) -> None:
    key = await log.leave_unknown()
    async with log.effect(policy=IDEMPOTENT) as e:
        assert (e.replayed, e.attempts, e.vendor_key) == (False, 2, key)
        await e.complete(1)
    async with log.effect(policy=IDEMPOTENT) as e:
        assert e.replayed


async def test_asking_needs_a_graph(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectUnknown):
        async with log.effect(policy=EffectPolicy(on_unknown="ask")):
            pytest.fail("it ran twice")


# --- decisions ---


async def test_decided_that_it_happened(log: Log) -> None:
    await log.leave_unknown()
    [pending] = await log.pending()
    record = await log.resolve(pending.effect_id, Happened(9), note="seen at the bank", actor="ann")
    assert (record.state, record.source) == ("completed", "human")
    assert await log.pending() == []
    async with log.effect() as e:
        assert (e.replayed, e.result, e.source) == (True, 9, "human")
    last = (await log.history(pending.effect_id))[-1]
    assert (last.from_state, last.to_state, last.actor, last.reason) == (
        "unknown",
        "completed",
        "ann",
        "seen at the bank",
    )


async def test_decided_that_it_did_not_happen(log: Log) -> None:
    key = await log.leave_unknown()
    [pending] = await log.pending()
    assert (await log.resolve(pending.effect_id, NotHappened())).state == "failed"
    async with log.effect() as e:
        assert not e.replayed
        assert e.vendor_key != key
        await e.complete(1)


async def test_a_decision_whose_answer_was_lost_was_taken(
    conninfo: str, proxy: Proxy, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, losses = ops.move_effect, [proxy.lose_next_answer]

    async def losing(*args: Any, **kwargs: Any) -> Any:
        if kwargs["actor"] == "ann" and losses:
            losses.pop()()
        return await move(*args, **kwargs)

    monkeypatch.setattr(ops, "move_effect", losing)
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        for key, actor in (("warm", "bob"), ("k", "ann")):
            await log.leave_unknown(key=key)
            [waiting] = await log.pending()
            record = await log.resolve(waiting.effect_id, Happened("seen"), actor=actor)
            assert record.state == "completed"
            with pytest.raises(EffectError, match="needs no decision"):
                await log.resolve(waiting.effect_id, None, actor="bob")


async def test_abandoned(log: Log) -> None:
    await log.leave_unknown()
    [pending] = await log.pending()
    assert (await log.resolve(pending.effect_id, None)).state == "abandoned"
    with pytest.raises(EffectAbandoned):
        async with log.effect():
            pytest.fail("it ran twice")
    with pytest.raises(EffectError, match="needs no decision"):
        await log.resolve(pending.effect_id, Happened(1))


async def test_decided_while_its_owner_is_silent(log: Log, conninfo: str) -> None:
    async with log.effect() as e:
        await e.issue()
        with pytest.raises(EffectError, match="is issued, and needs no decision"):
            await log.resolve(e.effect_id, Happened(1))
        age(conninfo)
        assert (await log.resolve(e.effect_id, Happened("found"))).state == "completed"
        with pytest.raises(EffectSuperseded):
            await e.complete("late")
    async with log.effect() as e:
        assert e.result == "found"


@pytest.mark.parametrize("finding", [Undetermined(), "happened", {"result": 1}, Happened, True], ids=repr)
async def test_decisions_that_are_none(log: Log, finding: Any) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectError, match="Happened"):
        await log.resolve((await log.only()).effect_id, finding)
    assert (await log.only()).state == "unknown"


async def test_a_decision_whose_result_cannot_be_stored(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(DurableError, match="result of 'pay'"):
        await log.resolve((await log.only()).effect_id, Happened(threading.Lock()))
    assert (await log.only()).state == "unknown"


# --- looking ---


async def test_listing(log: Log) -> None:
    for key in ("a", "b", "c"):
        async with log.effect(key=key) as e:
            await e.complete(key)
    await log.leave_unknown(name="mail", key="a")
    everything = await log.list()
    assert [r.tool for r in everything] == ["pay", "pay", "pay", "mail"]
    assert [r.effect_id for r in everything] == sorted(r.effect_id for r in everything)
    assert await log.list(state="completed") == everything[:3]
    assert await log.list(state=["unknown", "failed"]) == everything[3:]
    assert await log.list(tool="mail") == everything[3:]
    assert await log.list(limit=2) == everything[:2]
    assert await log.list(after=everything[1].effect_id, limit=None) == everything[2:]
    assert await log.list(thread_id="t") == await log.list(run_id="r") == await log.pending("t") == []
    assert await log.pending() == everything[3:]
    assert await log.get(everything[0].effect_id) == everything[0]
    assert await log.get(NO_ID) is None
    assert await log.history(NO_ID) == []


# --- transactions ---


@pytest.fixture
def seats(conninfo: str) -> str:
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE seats (name text)")
    return conninfo


def sold(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT count(*) FROM seats").fetchone()
        assert row is not None
        return int(row[0])


async def test_a_transaction_commits_both(log: Log, seats: str) -> None:
    async with log.transaction(args=["12a"]) as (execute, e):
        assert not e.replayed
        await execute("INSERT INTO seats VALUES (%s)", ["12a"])
        e.issue()
        e.complete({"seat": "12a"})
        assert sold(seats) == 0
    assert sold(seats) == 1
    async with log.transaction(args=["12a"]) as (execute, e):
        assert (e.replayed, e.result) == (True, {"seat": "12a"})
    assert sold(seats) == 1
    assert (await log.only()).state == "completed"
    assert (await log.moves())[-1] == ("issued", "completed")
    with pytest.raises(EffectConflict):
        async with log.transaction(args=["12b"]):
            pytest.fail("it ran")


async def test_a_transaction_rolls_back_both(log: Log, seats: str) -> None:
    with pytest.raises(ValueError, match="sold out"):
        async with log.transaction() as (execute, e):
            await execute("INSERT INTO seats VALUES ('12a')")
            raise ValueError("sold out")
    assert sold(seats) == 0
    assert await log.list() == []
    async with log.transaction() as (execute, e):
        assert not e.replayed
        with pytest.raises(EffectError, match="raise an exception"):
            e.fail("no")
    async with log.transaction() as (execute, e):
        assert (e.replayed, e.result) == (True, None)


async def test_a_transaction_with_statements_that_fail(log: Log, seats: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        async with log.transaction() as (execute, _):
            await execute("INSERT INTO seats VALUES ('12a')")
            await execute("INSERT INTO nowhere VALUES (1)")
    assert sold(seats) == 0
    assert await log.list() == []


async def test_a_transaction_under_a_key_that_was_used_outside_one(log: Log) -> None:
    await log.leave_unknown(name="seat")
    with pytest.raises(EffectError, match="begun outside of a transaction, and is unknown"):
        async with log.transaction():
            pytest.fail("it ran twice")


async def test_transactions_at_once(conninfo: str, seats: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = EffectLog.from_saver(saver)

        async def one() -> bool:
            async with log.atransaction("seat", key="k") as (cursor, e):
                if not e.replayed:
                    await cursor.execute("INSERT INTO seats VALUES ('12a')")
                return e.replayed

        assert sorted(await asyncio.gather(*(one() for _ in range(5)))) == [False, True, True, True, True]
    assert sold(seats) == 1


async def test_a_large_result_of_a_transaction_comes_over_its_own_connection(
    conninfo: str, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.transaction() as (_, e):
            e.complete("x" * (2 << 20))
        async with log.transaction() as (_, e):
            assert e.result == "x" * (2 << 20)


async def test_a_transaction_whose_result_cannot_be_stored(log: Log, seats: str) -> None:
    async with log.transaction() as (execute, e):
        await execute("INSERT INTO seats VALUES ('12a')")
        e.complete(threading.Lock())
    assert sold(seats) == 1
    assert (await log.only()).result_lost


# --- bad input ---


@pytest.mark.parametrize("key", ["", None, 3, b"k"], ids=repr)
async def test_keys_that_name_nothing(log: Log, key: Any) -> None:
    with pytest.raises(EffectError, match="key="):
        async with log.effect(key=key):
            pytest.fail("it ran")
    with pytest.raises(EffectError, match="key="):
        async with log.transaction(key=key):
            pytest.fail("it ran")
    assert await log.list() == []


async def test_keys_that_are_odd(log: Log) -> None:
    for key in ("a\0b", "ü", "x" * 100_000, " "):
        async with log.effect(key=key) as e:
            await e.complete(key)
        async with log.effect(key=key) as e:
            assert e.result == key


@pytest.mark.parametrize("name", ["", "a\0b", None, "\ud800"], ids=repr)
async def test_names_that_are_odd(log: Log, name: Any) -> None:
    with pytest.raises(DurableError):
        async with log.effect(name):
            pytest.fail("it ran")


async def test_arguments_that_are_no_plain_data(log: Log) -> None:
    with pytest.raises(EffectError, match="plain data"):
        async with log.effect(args={"lock": threading.Lock()}):
            pytest.fail("it ran")
    assert await log.list() == []


class Nothing(TypedDict, total=False):
    done: bool


class Card(BaseModel):
    number: SecretStr


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    amount: int = Field(default=1, exclude=True)


@dataclass
class Mail:
    users: Any


HIDDEN: dict[str, Callable[[], Any]] = {
    "generator": lambda: (user for user in ("ann", "bob")),
    "iterator": lambda: iter(["ann", "bob"]),
    "map": lambda: map(str, ["ann", "bob"]),
    "zip": lambda: zip(["ann"], ["bob"], strict=True),
    "in a list": lambda: [["carl"], [iter(["ann", "bob"])]],
    "in a dict": lambda: {"to": (user for user in ("ann", "bob"))},
    "in a deque": lambda: deque([iter(["ann", "bob"])]),
    "in a dataclass": lambda: Mail(iter(["ann", "bob"])),
    "in a model": lambda: Order(name="a", more=iter(["ann"])),  # type: ignore[call-arg]
    "secret": lambda: SecretStr("ann"),
    "secret bytes": lambda: SecretBytes(b"ann"),
    "secret in a model": lambda: [Card(number=SecretStr("ann"))],
    "excluded": lambda: Order(name="a", amount=2),
}


def mail(log: Log, done: list[Any], **options: Any) -> Callable[..., Any]:
    """A decorated function of one argument, which reads it."""

    def act(users: Any, note: str = "") -> str:
        done.append(list(users) if isinstance(users, Iterator) else users)
        return "sent"

    decorate = effect(log=log.inner, **options)
    if log.asynchronous:

        async def aact(users: Any, note: str = "") -> str:
            return act(users, note)

        return decorate(aact)
    guarded = decorate(act)

    async def acted(*args: Any, **kwargs: Any) -> str:
        return guarded(*args, **kwargs)

    return acted


def in_a_graph(node: Callable[[Any], Any], saver: DurableSaver) -> Any:
    async def run(state: Nothing) -> None:
        await node(state)

    builder = StateGraph(Nothing)
    builder.add_node("node", run)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@pytest.mark.context
@pytest.mark.parametrize("scope", ["call", "thread"])
@pytest.mark.parametrize("hidden", HIDDEN)
async def test_arguments_that_hashing_would_use_up_or_not_tell_apart(
    log: Log, hidden: str, scope: str
) -> None:
    done: list[Any] = []
    send, given = mail(log, done, scope=scope), HIDDEN[hidden]()

    async def node(state: Any) -> None:
        await send(given)

    graph = in_a_graph(node, log.saver)
    with pytest.raises(EffectError, match=r"plain data.*key="):
        await graph.ainvoke({}, {"configurable": {"thread_id": "t"}}, durability="sync")
    assert done == []
    assert await log.list() == []
    if isinstance(given, Iterator):
        assert list(given), "it was used up"
    with pytest.raises(EffectError, match="plain data"):
        async with log.effect(args=[given]):
            pytest.fail("it ran")
    assert await log.list() == []


@pytest.mark.parametrize("hidden", [*HIDDEN, "lock"])
async def test_a_key_lets_any_arguments_pass(log: Log, hidden: str) -> None:
    done: list[Any] = []
    send = mail(log, done, key="k", name="mail")
    given = HIDDEN.get(hidden, threading.Lock)
    for _ in range(2):
        assert await send(given()) == "sent"
    whole = [list(given()) if isinstance(given(), Iterator) else None]
    assert len(done) == 1
    if whole != [None]:
        assert done == whole
    record = await log.only()
    assert "<left out>" in str(record.args)
    assert "ann" not in str(record.args)
    with pytest.raises(EffectConflict):  # by what can be compared
        await send(given(), note="another")


@pytest.mark.parametrize("effect_id", ["", "x", "0" * 25, "ü" * 26, None, 3, "a\0b"], ids=repr)
async def test_ids_that_are_none(log: Log, effect_id: Any) -> None:
    for call in (log.get(effect_id), log.history(effect_id), log.resolve(effect_id, None)):
        with pytest.raises(EffectError, match="not the id of an effect"):
            await call


async def test_an_id_that_nothing_has(log: Log) -> None:
    with pytest.raises(EffectError, match="there is no effect"):
        await log.resolve(NO_ID, Happened())


@pytest.mark.parametrize(
    "filters",
    [
        {"state": "done"},
        {"state": ["completed", "done"]},
        {"limit": -1},
        {"after": "x"},
        {"thread_id": "a\0b"},
    ],
    ids=repr,
)
async def test_filters_that_select_nothing_sensible(log: Log, filters: Any) -> None:
    with pytest.raises(DurableError):
        await log.list(**filters)


@pytest.mark.parametrize(
    "options",
    [
        {"on_unknown": "pray"},
        {"scope": "galaxy"},
        {"on_fork": "spoon"},
        {"on_unknown": "verify"},
        {"lease": timedelta(0)},
        {"lease": 30},
        {"lease": timedelta.max},
        {"settle": timedelta(-1)},
        {"wait": -1},
        {"vendor_window": timedelta(-1)},
        {"vendor_window": 24},
        {"failed_on": ("ValueError",)},
        {"failed_on": 3},
        {"verify": Happened(1)},
    ],
    ids=repr,
)
def test_policies_that_make_no_sense(options: Any) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        EffectPolicy(**options)
    with pytest.raises(InvalidConfig):
        effect(**options)
    with pytest.raises(InvalidConfig):
        READ_ONLY.but(**options)


def test_one_exception_type_stands_for_itself() -> None:
    assert EffectPolicy(failed_on=ValueError).failed_on == (ValueError,)


def test_a_log_needs_a_saver_of_ours(saver: DurableSaver) -> None:
    with pytest.raises(InvalidConfig, match="DurableSaver"):
        EffectLog.from_saver(InMemorySaver())  # type: ignore[arg-type]
    assert EffectLog.from_saver(saver) is EffectLog.from_saver(saver)


def test_decorators_take_parentheses() -> None:
    with pytest.raises(TypeError, match="parentheses"):
        effect(lambda: 1)  # type: ignore[arg-type]


def test_a_name_that_cannot_be_stored_is_refused_at_once() -> None:
    with pytest.raises(InvalidConfig, match="name holds a NUL"):
        effect(name="pay\0")(lambda: 1)


# --- decorated functions outside of a graph ---


async def test_a_decorated_function_with_key_and_log(log: Log) -> None:
    ran = []
    decorate = effect(key=lambda order: order, log=log.inner, name="refund")
    if log.asynchronous:

        @decorate
        async def arefund(order: str) -> str:
            ran.append((order, current_effect().vendor_key))
            return f"refunded {order}"

        results = [await arefund("1"), await arefund(order="1"), await arefund("2")]
    else:

        @decorate
        def refund(order: str) -> str:
            ran.append((order, current_effect().vendor_key))
            return f"refunded {order}"

        results = [refund("1"), refund(order="1"), refund("2")]
    assert results == ["refunded 1", "refunded 1", "refunded 2"]
    assert [order for order, _ in ran] == ["1", "2"]
    assert [r.tool for r in await log.list()] == ["refund", "refund"]
    assert [r.args for r in await log.list()] == [{"order": "1"}, {"order": "2"}]


async def test_a_body_that_has_yet_to_run_is_no_outcome(log: Log) -> None:
    async def later() -> None:
        pytest.fail("it ran")

    def each() -> Iterator[None]:
        yield pytest.fail("it ran")

    for number, begin in enumerate((later, each)):
        if log.asynchronous:

            @effect(key=f"k{number}", log=log.inner)
            async def arun() -> Any:
                return begin()  # noqa: B023 (called in this round)

            with pytest.raises(EffectError, match="runs after it returned"):
                await arun()
        else:

            @effect(key=f"k{number}", log=log.inner)
            def run() -> Any:
                return begin()  # noqa: B023 (called in this round)

            with pytest.raises(EffectError, match="runs after it returned"):
                run()
    assert [r.state for r in await log.list()] == ["unknown", "unknown"]


async def test_an_argument_that_is_called_config(log: Log) -> None:
    ran: list[Any] = []

    @effect(key="deploy", log=log.inner)
    def deploy(config: dict[str, int]) -> None:
        ran.append(config)

    deploy({"replicas": 1})
    with pytest.raises(EffectConflict):
        deploy({"replicas": 2})

    @effect(key="send", log=log.inner)
    def send(text: str, config: RunnableConfig | None = None) -> None:
        ran.append(text)

    @effect(key="call", log=log.inner)
    def call(text: str, config=None) -> None:  # type: ignore[no-untyped-def]
        ran.append(text)

    for thread_id in ("a", "b"):
        send("sent", {"configurable": {"thread_id": thread_id}})
        call("called", {"configurable": {"thread_id": thread_id}})
    assert ran == [{"replicas": 1}, "sent", "called"]


def test_a_decorated_function_without_a_log_or_key(saver: DurableSaver) -> None:
    def refund(order: str) -> None:
        pytest.fail("it ran")

    for options in ({}, {"log": EffectLog.from_saver(saver)}, {"key": "k"}):
        with pytest.raises(EffectError, match="outside of a running graph"):
            effect(**options)(refund)("1")
    for key in (lambda order: "", lambda order: 3):
        with pytest.raises(EffectError, match="must give text"):
            effect(key=key, log=EffectLog.from_saver(saver))(refund)("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        effect(key="k", log=EffectLog.from_saver(saver))(refund)()  # type: ignore[call-arg]
    assert EffectLog.from_saver(saver).list() == []


async def test_read_only_functions_are_not_logged(log: Log) -> None:
    @effect(READ_ONLY)
    def look(order: str) -> str:
        return f"looked at {order}"

    @effect(read_only=True)
    async def alook(order: str) -> str:
        return f"looked at {order}"

    assert look("1") == await alook("1") == "looked at 1"
    assert await log.list() == []


# --- what a replay costs ---


async def test_a_replay_is_one_round_trip_and_writes_nothing(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.effect(args={"cents": 5}) as e:
            await e.issue()
            await e.complete({"id": 1})
        written, trips = next_transaction(conninfo), proxy.round_trips
        for _ in range(3):
            async with log.effect(args={"cents": 5}) as e:
                assert e.result == {"id": 1}
        assert proxy.round_trips - trips == 3
        assert next_transaction(conninfo) == written
        assert log.inner.replays() == 3


async def test_what_an_effect_costs(proxy: Proxy, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.effect(key="warm") as e:
            await e.complete(1)
        trips = proxy.round_trips
        async with log.effect(key="other") as e:
            await e.complete(1)
        assert proxy.round_trips - trips == 3, "looked for, claimed, completed"
