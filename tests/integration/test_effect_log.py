"""The effect log in plain code: outcomes, claims, decisions, listing, refused input, and what a replay costs."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import timedelta
from functools import partial
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
    EffectError,
    EffectPolicy,
    EffectUnknownError,
    Happened,
    NotHappened,
    Undetermined,
    current_effect,
    effect,
)
from langgraph_durable.effects import RunningEffect
from langgraph_durable.effects._lookup import log_in
from langgraph_durable.effects._protocol import claim
from langgraph_durable.effects._protocol.executor import ReplayCounter
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.rows import Transition
from langgraph_durable.errors import (
    EffectAbandonedError,
    EffectConflictError,
    EffectInFlightError,
    EffectSupersededError,
    InvalidConfigError,
)
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
    """A policy whose verify returns one finding after the other."""
    left = iter(findings)
    return EffectPolicy(verify=lambda record: next(left))


# --- outcomes ---


async def test_a_completed_effect_is_replayed(log: Log) -> None:
    async with log.effect(args={"cents": 5}, issued=False) as e:
        assert (e.replayed, e.result, e.attempts, e.state) == (False, None, 1, "claimed")
        assert current_effect() == RunningEffect(e.effect_id, e.idempotency_key, 1, e.first_attempt_at)
        await e.issue()
        assert e.state == "issued"
        await e.complete({"id": 1})
        assert (e.state, e.result) == ("completed", {"id": 1})
    async with log.effect(args={"cents": 5}) as again:
        assert (again.replayed, again.result, again.effect_id) == (True, {"id": 1}, e.effect_id)
        assert (again.source, again.attempts, again.idempotency_key) == ("executed", 1, e.idempotency_key)
    assert await log.moves() == [(None, "claimed"), ("claimed", "issued"), ("issued", "completed")]
    record = await log.only()
    assert (record.tool, record.args, record.scope) == ("pay", {"cents": 5}, "key")
    assert record.thread_id is None
    assert record.ended_at is not None
    assert record.first_attempt_at == e.first_attempt_at
    with pytest.raises(EffectError, match="no effect is running here"):
        current_effect()


async def test_an_effect_begins_as_issued(log: Log, conninfo: str) -> None:
    """Its process may be killed after the request, so an expired lease means that it may have happened."""
    async with log.effect() as e:
        assert e.state == "issued"
        age(conninfo)
        with pytest.raises(EffectUnknownError):
            async with log.effect():
                pytest.fail("it ran twice")
        await e.complete(1)
    assert await log.moves() == [(None, "issued"), ("issued", "unknown"), ("unknown", "completed")]


async def test_issue_of_an_issued_effect_checks_its_owner(log: Log, conninfo: str) -> None:
    async with log.effect() as e:
        age(conninfo)
        await e.issue()
        assert await log.pending() == [], "its lease was renewed"
        age(conninfo)
        await log.resolve(e.effect_id, NotHappened())
        with pytest.raises(EffectSupersededError):
            await e.issue()
    assert (await log.only()).state == "failed"


async def test_a_claimed_effect_can_complete_without_issue(log: Log) -> None:
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


async def test_fail_records_a_definite_failure(log: Log) -> None:
    async with log.effect() as first:
        await first.issue()
        await first.fail("declined")
    record = await log.only()
    assert (record.state, record.error, record.generation) == ("failed", "declined", 0)
    async with log.effect() as second:
        assert (second.replayed, second.attempts) == (False, 2)
        assert second.idempotency_key != first.idempotency_key  # providers replay saved errors
        await second.complete("paid")
    record = await log.only()
    assert (record.state, record.generation, record.fence, record.error) == ("completed", 1, 2, None)


@pytest.mark.parametrize("issued", [False, True])
async def test_leaving_a_block_without_an_outcome(log: Log, issued: bool) -> None:
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
async def test_outcomes_of_exceptions_before_and_after_issue(
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
    """Carries the error below it as its cause or first argument, as HTTP clients do."""


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


async def test_a_refused_connection_keeps_the_idempotency_key(log: Log, conninfo: str) -> None:
    """It may be the second connection, after a request over the first: the provider must recognize the request."""
    keys = []
    for error in (ConnectionRefusedError("down"), ConnectionRefusedError("down"), LookupError("declined")):
        with pytest.raises(type(error)):
            async with log.effect(policy=EffectPolicy(failed_on=LookupError)) as e:
                keys.append(e.idempotency_key)
                await e.issue()
                raise error
    async with log.effect() as e:
        keys.append(e.idempotency_key)
        assert e.attempts == 4
        await e.complete()
    assert keys[0] == keys[1] == keys[2] != keys[3]
    with psycopg.connect(conninfo) as connection:  # attempts leave no notes
        assert connection.execute("SELECT * FROM langgraph_durable.effect_notes").fetchall() == []


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


async def test_error_texts_that_postgres_cannot_store_are_escaped(log: Log) -> None:
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
async def test_results_are_replayed_unchanged(log: Log, conninfo: str, result: Any) -> None:
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


async def test_a_named_tuple_is_replayed(log: Log) -> None:
    @effect(key="k", log=log.inner)
    def pay() -> Paid:
        return Paid("p1", 500)

    assert pay() == pay() == Paid("p1", 500)


async def test_an_effect_whose_result_cannot_be_stored_never_runs_again(log: Log) -> None:
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


async def test_an_encrypted_effect_shows_no_plain_text(log: Log, conninfo: str) -> None:
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
async def test_the_same_key_with_other_arguments_is_a_conflict(log: Log, state: str) -> None:
    with pytest.raises(EffectConflictError, match="other arguments"):
        async with log.effect(args={"cents": 5}) as e:
            if state in ("completed", "failed"):
                await (e.complete(1) if state == "completed" else e.fail("no"))
            elif state == "unknown":
                await e.issue()
                e.inner._attempt.row = e.inner._attempt.row._replace(fence=-1)  # its end is not recorded
                with pytest.raises(EffectSupersededError):
                    await e.complete(1)
            async with log.effect(args={"cents": 6}):
                pytest.fail("it ran")
    assert len(await log.list()) == 1


async def test_arguments_are_compared_by_value(log: Log) -> None:
    async with log.effect(args={"a": 1, "b": [1, 2]}) as e:
        await e.complete(1)
    async with log.effect(args={"b": (1, 2), "a": 1}) as e:
        assert e.replayed
    for other in ({"a": 1}, {"a": "1", "b": [1, 2]}, {"a": 1, "b": [2, 1]}, None):
        with pytest.raises(EffectConflictError):
            async with log.effect(args=other):
                pytest.fail("it ran")


async def test_an_effect_in_flight_elsewhere_is_refused(log: Log) -> None:
    async with log.effect() as e:
        with pytest.raises(EffectInFlightError, match="still in flight"):
            async with log.effect(policy=EffectPolicy(wait_timeout=timedelta(milliseconds=50))):
                pytest.fail("it ran twice")
        await e.complete(1)


async def test_a_waiting_caller_gets_the_outcome(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = saver.effects
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


async def test_concurrent_callers_run_an_effect_once(conninfo: str) -> None:
    ran = []
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = saver.effects

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


async def test_a_claim_with_an_expired_lease_is_taken_over(log: Log, conninfo: str) -> None:
    with pytest.raises(EffectSupersededError):
        async with log.effect(issued=False) as first:
            age(conninfo)
            async with log.effect(issued=False) as second:
                assert not second.replayed
                assert second.idempotency_key == first.idempotency_key  # nothing was sent
                await second.complete("second")
            await first.complete("first")
    assert (await log.only()).attempts == 2
    async with log.effect() as e:
        assert e.result == "second"
    refused = (await log.history(e.effect_id))[-1]
    assert (refused.from_state, refused.to_state, refused.fence) == ("completed", "completed", 1)
    assert "refused" in str(refused.reason)


async def test_an_issued_effect_with_an_expired_lease_is_unknown_until_its_owner_reports(
    log: Log, conninfo: str
) -> None:
    async with log.effect() as first:
        await first.issue()
        age(conninfo)
        assert [r.effect_id for r in await log.pending()] == [first.effect_id]
        with pytest.raises(EffectUnknownError, match="resolve") as caught:
            async with log.effect():
                pytest.fail("it ran twice")
        assert caught.value.effect_id == first.effect_id
        assert (await log.only()).state == "unknown"
        await first.complete("late")
    async with log.effect() as e:
        assert (e.replayed, e.result) == (True, "late")
    assert (await log.moves())[-2:] == [("issued", "unknown"), ("unknown", "completed")]


async def test_a_late_owner_is_refused_after_a_decision(log: Log, conninfo: str) -> None:
    with pytest.raises(EffectSupersededError):
        async with log.effect() as first:
            await first.issue()
            age(conninfo)
            await log.resolve(first.effect_id, NotHappened(), note="looked it up", actor="ann")
            await first.complete("late")
    assert (await log.only()).state == "failed"


async def test_a_claim_whose_response_was_lost_is_recognized(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        await log.list()
        async with log.effect(key="warm") as e:
            await e.issue()
            await e.complete("paid")
        quick = EffectPolicy(wait_timeout=timedelta(seconds=1))
        proxy.lose_next_answer()
        async with log.effect(policy=quick, issued=False) as e:
            assert (e.replayed, e.attempts) == (False, 1)
            await e.issue()
            proxy.lose_next_answer()
            await e.complete("paid")
        moves = [(move.from_state, move.to_state) for move in await log.history(e.effect_id)]
        assert moves == [(None, "claimed"), ("claimed", "issued"), ("issued", "completed")]


@pytest.mark.parametrize("issued", [False, True], ids=["failed", "unknown"])
async def test_a_second_claim_whose_response_was_lost_is_recognized(
    conninfo: str, proxy: Proxy, drive: Driver, issued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before_claim(call: Any) -> None:
        if losing and not issued:
            proxy.lose_next_answer()

    def before_taking_over(record: Any) -> Undetermined:
        if losing:
            proxy.lose_next_answer()
        return Undetermined()

    monkeypatch.setattr(claim, "await_stored", before_claim)
    policy = EffectPolicy(verify=before_taking_over, on_unknown="retry", wait_timeout=timedelta(seconds=1))
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


async def test_an_issue_whose_response_was_lost_is_unknown(
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
        with pytest.raises(EffectUnknownError):
            async with log.effect():
                pytest.fail("it ran twice")


# --- unknown ---


async def test_an_unknown_effect_is_not_tried_again(log: Log) -> None:
    await log.leave_unknown()
    for _ in range(2):
        with pytest.raises(EffectUnknownError):
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
    assert (seen[0].state, seen[0].args, seen[0].idempotency_key) == ("unknown", {"cents": 5}, key)
    assert seen[0].error == "TimeoutError: no answer"
    assert len(seen) == 1


async def test_verify_finds_that_it_did_not_happen(log: Log) -> None:
    key = await log.leave_unknown()
    async with log.effect(policy=verified(NotHappened())) as e:
        assert (e.replayed, e.attempts) == (False, 2)
        assert e.idempotency_key != key  # a definite failure
        await e.issue()
        await e.complete(2)
    assert ("unknown", "failed") in await log.moves()
    assert (await log.only()).fence == 3


async def test_not_happened_is_not_believed_before_verify_after(log: Log, conninfo: str) -> None:
    await log.leave_unknown()
    calls = []

    def verify(record: Any) -> NotHappened:
        calls.append(record)
        return NotHappened()

    slow = EffectPolicy(
        verify=verify, verify_after=timedelta(hours=1), wait_timeout=timedelta(milliseconds=10)
    )
    with pytest.raises(EffectUnknownError):
        async with log.effect(policy=slow):
            pytest.fail("it ran twice")
    age(conninfo, timedelta(hours=2))
    async with log.effect(policy=slow) as e:
        await e.complete(1)
    assert len(calls) == 2


@pytest.mark.parametrize("silent", [True, False])
async def test_verify_after_counts_from_the_end_of_an_attempt(log: Log, conninfo: str, silent: bool) -> None:
    """A body that takes an hour may send its request at the end."""
    slow = replace(
        verified(NotHappened(), NotHappened()), verify_after=timedelta(minutes=30), wait_timeout=timedelta(0)
    )

    async def try_again() -> None:
        with pytest.raises(EffectUnknownError):
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


async def test_verify_after_is_waited_for_within_wait_timeout(log: Log) -> None:
    await log.leave_unknown()
    policy = replace(verified(NotHappened(), NotHappened()), verify_after=timedelta(milliseconds=300))
    async with log.effect(policy=policy) as e:
        record = await log.only()
        assert record.attempted_at - record.first_attempt_at >= timedelta(milliseconds=300)
        await e.complete(1)


async def test_undetermined_verifies_again_after_retry_in(log: Log) -> None:
    await log.leave_unknown()
    soon = Undetermined(retry_in=timedelta(milliseconds=1))
    async with log.effect(policy=verified(soon, soon, Happened(3))) as e:
        assert e.result == 3


@pytest.mark.parametrize("finding", [Undetermined(), Undetermined(retry_in=timedelta(hours=1))], ids=repr)
async def test_undetermined_beyond_wait_timeout_is_unknown(log: Log, finding: Undetermined) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectUnknownError):
        async with log.effect(policy=verified(finding)):
            pytest.fail("it ran twice")
    assert (await log.only()).state == "unknown"


async def test_a_verify_that_raises_leaves_the_effect_unknown(log: Log) -> None:
    await log.leave_unknown()

    def verify(record: Any) -> Happened:
        raise OSError("the vendor is down")

    with pytest.raises(EffectUnknownError, match="the vendor is down") as caught:
        async with log.effect(policy=EffectPolicy(verify=verify)):
            pytest.fail("it ran twice")
    assert isinstance(caught.value.__cause__, OSError)
    assert (await log.only()).state == "unknown"


async def test_a_verify_that_returns_no_finding_is_refused(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectError, match="Return Happened"):
        async with log.effect(policy=verified(True)):
            pytest.fail("it ran twice")
    assert (await log.only()).state == "unknown"


async def test_an_async_verify_needs_an_async_tool(log: Log) -> None:
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


async def test_an_async_verify_in_a_callable_object_is_recognized(log: Log) -> None:
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


async def test_retry_keeps_the_idempotency_key_within_its_window(log: Log, conninfo: str) -> None:
    retry = EffectPolicy(on_unknown="retry", idempotency_window=timedelta(hours=24))
    key = await log.leave_unknown(policy=retry)
    async with log.effect(policy=retry) as e:
        assert (e.replayed, e.attempts, e.idempotency_key) == (False, 2, key)
        assert e.state == "issued"  # from here on it may have been sent, again
        await e.complete(1)
    assert (await log.moves())[-2:] == [("unknown", "issued"), ("issued", "completed")]
    await log.leave_unknown(key="old", policy=retry)
    age(conninfo, timedelta(hours=25))
    with pytest.raises(EffectUnknownError):
        async with log.effect(key="old", policy=retry):
            pytest.fail("the vendor has forgotten its key")


async def test_the_idempotency_window_begins_with_the_first_attempt(log: Log, conninfo: str) -> None:
    retry = EffectPolicy(on_unknown="retry", idempotency_window=timedelta(hours=24))
    await log.leave_unknown(policy=retry)
    age(conninfo, timedelta(hours=23))
    await log.leave_unknown(policy=retry)
    age(conninfo, timedelta(hours=23))
    with pytest.raises(EffectUnknownError):
        async with log.effect(policy=retry):
            pytest.fail("the vendor has the key since 46 hours")


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError, KeyError, GraphInterrupt], ids=["refused", "failed_on", "interrupt"]
)
@pytest.mark.parametrize("again", [EffectPolicy(on_unknown="retry"), IDEMPOTENT], ids=["retry", "idempotent"])
async def test_a_definite_failure_leaves_an_earlier_unknown_attempt_unknown(
    log: Log, again: EffectPolicy, error: type[Exception]
) -> None:
    """It stays unknown under the same key, or a provider that did it the first time would do it twice."""
    again = again.replace(failed_on=KeyError)
    key = await log.leave_unknown(policy=again)
    with pytest.raises(error):
        async with log.effect(policy=again):
            raise error
    record = await log.only()
    assert (record.state, record.generation) == ("unknown", 0)
    async with log.effect(policy=again) as e:
        assert (e.attempts, e.idempotency_key) == (3, key)
        await e.complete(1)


def keyed(log: Log, *errors: Exception, **options: Any) -> Callable[[], Any]:
    """Run a decorated function whose body raises one error after the other, and then succeeds."""
    left = list(errors)

    def act() -> Any:
        keys.append(current_effect().idempotency_key)
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


async def test_an_attempt_that_sent_nothing_keeps_the_key_of_a_suspended_one(log: Log) -> None:
    """A tool may send, ask a human, and send again when it runs again: the provider recognizes the key."""
    act = keyed(log, GraphInterrupt(), ConnectionRefusedError())
    for error in (GraphInterrupt, ConnectionRefusedError):
        with pytest.raises(error):
            await act()
        assert (await log.only()).state == "suspended"
    keys = await act()
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_a_claim_that_dies_keeps_the_key_of_a_suspended_effect(log: Log, conninfo: str) -> None:
    act = keyed(log, GraphInterrupt(), ConnectionRefusedError())
    with pytest.raises(GraphInterrupt):
        await act()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        # The row of a claim whose owner was killed.
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


# --- requests that may have reached the provider ---


async def test_a_refused_connection_is_verified(log: Log) -> None:
    """It may be the second connection: the first was cut when the provider restarted, after its commit."""
    found: list[Any] = [NotHappened(), Happened("found")]
    policy = EffectPolicy(verify=lambda record: found.pop(0))
    keys = []
    for _ in range(2):
        with pytest.raises(HttpError):
            async with log.effect(policy=policy) as e:
                keys.append(e.idempotency_key)
                await e.issue()
                raise HttpError(ConnectionRefusedError("refused"))
        assert (await log.only()).state == "unknown"
    async with log.effect(policy=policy) as e:
        assert (e.replayed, e.result, e.source) == (True, "found", "verified")
    assert keys[0] == keys[1], "the provider must recognize what the first connection may have sent"
    assert found == []


async def test_a_refused_connection_in_failed_on_is_definite(log: Log) -> None:
    policy = verified().replace(failed_on=ConnectionRefusedError)
    with pytest.raises(ConnectionRefusedError):
        async with log.effect(policy=policy):
            raise ConnectionRefusedError
    assert (await log.only()).state == "failed"
    async with log.effect(policy=policy) as e:
        await e.complete(1)


@pytest.mark.parametrize("finding", [Happened("found"), NotHappened(), Undetermined()], ids=repr)
async def test_an_effect_suspended_after_it_began_is_verified(log: Log, finding: Any) -> None:
    seen = []

    def find(record: Any) -> Any:
        seen.append(record)
        return finding

    act = keyed(log, GraphInterrupt(), verify=find)
    with pytest.raises(GraphInterrupt):
        await act()
    assert ((await log.only()).state, await log.pending(), seen) == ("suspended", [], [])
    if isinstance(finding, Undetermined):
        with pytest.raises(EffectUnknownError):
            await act()
        return
    result = await act()
    assert len(seen) == 1
    if isinstance(finding, Happened):
        assert result == "found"
        return
    assert len(result) == 2
    assert result[0] == result[1], "it did not fail, so the provider must recognize it"


async def test_verify_after_counts_from_the_suspension(log: Log, conninfo: str) -> None:
    policy = replace(
        verified(NotHappened(), NotHappened()), verify_after=timedelta(minutes=30), wait_timeout=timedelta(0)
    )
    act = keyed(log, GraphInterrupt(), policy=policy)
    with pytest.raises(GraphInterrupt):
        await act()
    with psycopg.connect(conninfo) as connection:  # the body took an hour
        connection.execute(f"UPDATE {SCHEMA}.effects SET attempted_at = attempted_at - interval '1 hour'")
    with pytest.raises(EffectUnknownError):
        await act()
    age(conninfo)
    assert len(await act()) == 2


async def test_a_suspended_idempotent_tool_runs_again(log: Log) -> None:
    act = keyed(log, GraphInterrupt(), policy=replace(verified(), idempotent=True))
    with pytest.raises(GraphInterrupt):
        await act()
    assert len(await act()) == 2


@pytest.mark.parametrize("issued", [False, True])
@pytest.mark.parametrize("finding", [Happened("found"), NotHappened(), None], ids=repr)
async def test_an_interrupted_block_is_unknown_after_issue(log: Log, issued: bool, finding: Any) -> None:
    policy = verified(finding) if finding is not None else EffectPolicy()
    options: dict[str, Any] = {} if issued else {"issued": False}
    with pytest.raises(GraphInterrupt):
        async with log.effect(policy=policy, **options) as first:
            await first.issue()
            raise GraphInterrupt
    assert (await log.only()).state == "unknown"
    if finding is None:
        with pytest.raises(EffectUnknownError):
            async with log.effect(policy=policy):
                pytest.fail("it ran twice")
        return
    async with log.effect(policy=policy) as e:
        assert e.idempotency_key == first.idempotency_key
        assert (e.replayed, e.result) == ((True, "found") if finding != NotHappened() else (False, None))
        if not e.replayed:
            await e.complete()


async def test_an_interrupted_block_is_not_verified_before_issue(log: Log) -> None:
    with pytest.raises(GraphInterrupt):
        async with log.effect(policy=verified(), issued=False) as first:
            raise GraphInterrupt
    assert (await log.only()).state == "suspended"
    async with log.effect(policy=verified(), issued=False) as e:
        assert (e.replayed, e.idempotency_key) == (False, first.idempotency_key)
        await e.complete()


# --- idempotency keys ---


@pytest.mark.parametrize("by", ["verify", "human", "human, before any successor"])
async def test_a_stalled_owner_and_its_successor_use_the_same_key(log: Log, conninfo: str, by: str) -> None:
    """It may still send after its successor verified that nothing happened: the provider must see one key."""
    with pytest.raises(EffectSupersededError):
        async with log.effect() as stopped:
            await stopped.issue()
            age(conninfo)
            if by == "human":
                with pytest.raises(EffectUnknownError):
                    async with log.effect():
                        pytest.fail("it ran twice")
            if by != "verify":
                await log.resolve(stopped.effect_id, NotHappened())
            async with log.effect(policy=verified(NotHappened())) as e:
                assert not e.replayed
                assert e.idempotency_key == stopped.idempotency_key
                await e.complete("paid")
            await stopped.complete("paid, too")


async def test_a_cancelled_attempt_keeps_the_idempotency_key(log: Log) -> None:
    """A thread that it started keeps running."""
    with pytest.raises(asyncio.CancelledError):
        async with log.effect() as first:
            await first.issue()
            raise asyncio.CancelledError
    async with log.effect(policy=verified(NotHappened())) as e:
        assert e.idempotency_key == first.idempotency_key
        await e.complete()


async def test_the_key_changes_after_a_verified_failure_of_an_ended_attempt(log: Log, conninfo: str) -> None:
    """An error that the provider saved under the key is not replayed for ever."""
    with pytest.raises(EffectSupersededError):
        async with log.effect() as stopped:
            await stopped.issue()
            age(conninfo)
            with pytest.raises(TimeoutError):
                async with log.effect(policy=verified(NotHappened())):
                    raise TimeoutError
            async with log.effect(policy=verified(NotHappened())) as e:
                assert e.idempotency_key != stopped.idempotency_key
                await e.complete()
            await stopped.complete()


async def test_the_audit_log_shows_claims_that_died_after_a_suspension(log: Log, conninfo: str) -> None:
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


async def test_an_unknown_idempotent_effect_runs_again(log: Log) -> None:
    key = await log.leave_unknown()
    async with log.effect(policy=IDEMPOTENT) as e:
        assert (e.replayed, e.attempts, e.idempotency_key) == (False, 2, key)
        await e.complete(1)
    async with log.effect(policy=IDEMPOTENT) as e:
        assert e.replayed


async def test_asking_a_human_needs_a_graph(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectUnknownError):
        async with log.effect(policy=EffectPolicy(on_unknown="ask")):
            pytest.fail("it ran twice")


# --- decisions ---


async def test_a_decision_that_it_happened_is_replayed(log: Log) -> None:
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


async def test_a_decision_that_it_did_not_happen_allows_a_retry(log: Log) -> None:
    key = await log.leave_unknown()
    [pending] = await log.pending()
    assert (await log.resolve(pending.effect_id, NotHappened())).state == "failed"
    async with log.effect() as e:
        assert not e.replayed
        assert e.idempotency_key != key
        await e.complete(1)


async def test_a_decision_whose_response_was_lost_is_recognized(
    conninfo: str, proxy: Proxy, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, losses = ops.move_effect, [proxy.lose_next_answer]

    async def losing(db: Any, effect_id: Any, transition: Transition, **known: Any) -> Any:
        if transition.actor == "ann" and losses:
            losses.pop()()
        return await move(db, effect_id, transition, **known)

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


async def test_an_abandoned_effect_is_refused(log: Log) -> None:
    await log.leave_unknown()
    [pending] = await log.pending()
    assert (await log.resolve(pending.effect_id, None)).state == "abandoned"
    with pytest.raises(EffectAbandonedError):
        async with log.effect():
            pytest.fail("it ran twice")
    with pytest.raises(EffectError, match="needs no decision"):
        await log.resolve(pending.effect_id, Happened(1))


async def test_an_effect_with_an_expired_lease_can_be_decided(log: Log, conninfo: str) -> None:
    async with log.effect() as e:
        await e.issue()
        with pytest.raises(EffectError, match="is issued and needs no decision"):
            await log.resolve(e.effect_id, Happened(1))
        age(conninfo)
        assert (await log.resolve(e.effect_id, NotHappened())).state == "failed"
        with pytest.raises(EffectSupersededError):
            await e.complete("late")


@pytest.mark.parametrize("finding", [Undetermined(), "done", {"result": 1}, Happened, True], ids=repr)
async def test_decisions_other_than_findings_are_refused(log: Log, finding: Any) -> None:
    await log.leave_unknown()
    with pytest.raises(EffectError, match="Happened"):
        await log.resolve((await log.only()).effect_id, finding)
    assert (await log.only()).state == "unknown"


async def test_a_decision_with_an_unserializable_result_is_refused(log: Log) -> None:
    await log.leave_unknown()
    with pytest.raises(DurableError, match="result of 'pay'"):
        await log.resolve((await log.only()).effect_id, Happened(threading.Lock()))
    assert (await log.only()).state == "unknown"


# --- reading ---


async def test_list_filters_effects(log: Log) -> None:
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
    assert await log.list(limit=0) == []
    assert await log.list(after=everything[1].effect_id, limit=None) == everything[2:]
    assert await log.list(thread_id="t") == await log.list(run_id="r") == await log.pending("t") == []
    assert await log.pending() == everything[3:]
    assert await log.get(everything[0].effect_id) == everything[0]
    assert await log.get(NO_ID) is None
    assert await log.history(NO_ID) == []


async def test_list_returns_every_effect_in_pages(log: Log, conninfo: str) -> None:
    async with log.effect() as e:
        await e.complete("paid")
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            f"INSERT INTO {SCHEMA}.effects SELECT (jsonb_populate_record(e, jsonb_build_object("
            "    'effect_id', gen_random_uuid(), 'key', '\\x' || lpad(to_hex(number), 64, '0')"
            f"))).* FROM {SCHEMA}.effects e, generate_series(1, 1100) AS number"
        )
    ids = [r.effect_id for r in await log.list()]
    assert len(ids) == 1101
    assert ids == sorted(set(ids))
    assert [r.effect_id for r in await log.list(limit=450)] == ids[:450]
    assert [r.effect_id for r in await log.list(after=ids[99], limit=400)] == ids[100:500]


# --- run ---


async def test_run_runs_a_body_at_most_once(log: Log) -> None:
    keys = []

    def body() -> Paid:
        keys.append(current_effect().idempotency_key)
        return Paid("p", 5)

    assert await log.run("pay", key="k", body=body, args={"cents": 5}) == Paid("p", 5)
    assert await log.run("pay", key="k", body=body, args={"cents": 5}) == Paid("p", 5)
    assert keys == [(await log.only()).idempotency_key]
    assert await log.moves() == [(None, "issued"), ("issued", "completed")]
    assert log.inner.replays() == 1
    with pytest.raises(EffectConflictError):
        await log.run("pay", key="k", body=body, args={"cents": 6})
    assert (await log.only()).args == {"cents": 5}


async def test_a_run_that_raises_leaves_the_effect_unknown(log: Log) -> None:
    def body() -> str:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        await log.run("pay", key="k", body=body)
    with pytest.raises(EffectUnknownError):
        await log.run("pay", key="k", body=lambda: pytest.fail("it ran twice"))
    again = EffectPolicy(idempotent=True)
    assert await log.run("pay", key="k", body=lambda: "paid", policy=again) == "paid"
    assert (await log.only()).attempts == 2


async def test_run_with_read_only_is_not_logged(log: Log) -> None:
    assert await log.run("look", key="k", body=lambda: "seen", policy=READ_ONLY) == "seen"
    assert await log.list() == []


def test_run_refuses_an_async_body(saver: DurableSaver) -> None:
    async def body() -> str:
        return pytest.fail("it ran")

    with pytest.raises(EffectError, match="runs after it returned"):
        saver.effects.run("pay", key="k", body=body)  # type: ignore[unused-coroutine]
    assert [r.state for r in saver.effects.list()] == ["unknown"]


# --- replays ---


def test_replays_are_counted_for_the_latest_runs_and_in_total() -> None:
    counter = ReplayCounter()
    for number in range(3000):
        counter.add(f"run {number}")
    counter.add("run 2000")
    counter.add(None)
    assert counter.count(None) == 3002
    assert [counter.count(f"run {number}") for number in (0, 1900, 2000, 2999)] == [0, 0, 2, 1]
    assert len(counter._by_run) == 1024


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


async def test_a_transaction_commits_rows_and_effect(log: Log, seats: str) -> None:
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
    with pytest.raises(EffectConflictError):
        async with log.transaction(args=["12b"]):
            pytest.fail("it ran")


async def test_a_transaction_rolls_back_rows_and_effect(log: Log, seats: str) -> None:
    with pytest.raises(ValueError, match="sold out"):
        async with log.transaction() as (execute, e):
            await execute("INSERT INTO seats VALUES ('12a')")
            raise ValueError("sold out")
    assert sold(seats) == 0
    assert await log.list() == []
    async with log.transaction() as (execute, e):
        assert not e.replayed
        with pytest.raises(EffectError, match="Raise an exception"):
            e.fail("no")
    async with log.transaction() as (execute, e):
        assert (e.replayed, e.result) == (True, None)


async def test_a_transaction_with_a_failed_statement_rolls_back(log: Log, seats: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        async with log.transaction() as (execute, _):
            await execute("INSERT INTO seats VALUES ('12a')")
            await execute("INSERT INTO nowhere VALUES (1)")
    assert sold(seats) == 0
    assert await log.list() == []


async def test_a_transaction_refuses_a_key_used_outside_a_transaction(log: Log) -> None:
    await log.leave_unknown(name="seat")
    with pytest.raises(EffectError, match="begun outside a transaction and is unknown"):
        async with log.transaction():
            pytest.fail("it ran twice")


async def test_concurrent_transactions_commit_once(conninfo: str, seats: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        log = saver.effects

        async def one() -> bool:
            async with log.atransaction("seat", key="k") as (cursor, e):
                if not e.replayed:
                    await cursor.execute("INSERT INTO seats VALUES ('12a')")
                return e.replayed

        assert sorted(await asyncio.gather(*(one() for _ in range(5)))) == [False, True, True, True, True]
    assert sold(seats) == 1


async def test_a_transaction_replays_a_large_result_over_its_connection(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.transaction() as (_, e):
            e.complete("x" * (2 << 20))
        async with log.transaction() as (_, e):
            assert e.result == "x" * (2 << 20)


async def test_a_transaction_with_an_unserializable_result_commits(log: Log, seats: str) -> None:
    async with log.transaction() as (execute, e):
        await execute("INSERT INTO seats VALUES ('12a')")
        e.complete(threading.Lock())
    assert sold(seats) == 1
    assert (await log.only()).result_lost


# --- bad input ---


@pytest.mark.parametrize("key", ["", None, 3, b"k"], ids=repr)
async def test_empty_keys_are_refused(log: Log, key: Any) -> None:
    with pytest.raises(EffectError, match="key="):
        async with log.effect(key=key):
            pytest.fail("it ran")
    with pytest.raises(EffectError, match="key="):
        async with log.transaction(key=key):
            pytest.fail("it ran")
    assert await log.list() == []


async def test_unusual_keys_are_accepted(log: Log) -> None:
    for key in ("a\0b", "ü", "x" * 100_000, " "):
        async with log.effect(key=key) as e:
            await e.complete(key)
        async with log.effect(key=key) as e:
            assert e.result == key


@pytest.mark.parametrize("name", ["", "a\0b", None, "\ud800"], ids=repr)
async def test_unusable_names_are_refused(log: Log, name: Any) -> None:
    with pytest.raises(DurableError):
        async with log.effect(name):
            pytest.fail("it ran")


async def test_arguments_that_are_not_plain_data_are_refused(log: Log) -> None:
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
async def test_arguments_that_hashing_would_exhaust_or_confuse_are_refused(
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
async def test_a_key_allows_any_arguments(log: Log, hidden: str) -> None:
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
    with pytest.raises(EffectConflictError):  # by what can be compared
        await send(given(), note="another")


@pytest.mark.parametrize("effect_id", ["", "x", "0" * 25, "ü" * 26, None, 3, "a\0b"], ids=repr)
async def test_invalid_effect_ids_are_refused(log: Log, effect_id: Any) -> None:
    for call in (log.get(effect_id), log.history(effect_id), log.resolve(effect_id, None)):
        with pytest.raises(EffectError, match="not the id of an effect"):
            await call


async def test_resolving_a_missing_effect_is_refused(log: Log) -> None:
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
async def test_invalid_filters_are_refused(log: Log, filters: Any) -> None:
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
        {"lease": 0},
        {"lease": "30"},
        {"lease": True},
        {"lease": float("inf")},
        {"lease": float("nan")},
        {"lease": timedelta.max},
        {"verify_after": timedelta(-1)},
        {"wait_timeout": -1},
        {"idempotency_window": timedelta(-1)},
        {"idempotency_window": "24"},
        {"failed_on": ("ValueError",)},
        {"failed_on": 3},
        {"verify": Happened(1)},
    ],
    ids=repr,
)
def test_invalid_policies_are_refused(options: Any) -> None:
    with pytest.raises(InvalidConfigError, match=next(iter(options))):
        EffectPolicy(**options)
    with pytest.raises(InvalidConfigError):
        effect(**options)
    with pytest.raises(InvalidConfigError):
        READ_ONLY.replace(**options)


@pytest.mark.parametrize("unknown", ["settle", "wait", "window"])
def test_unknown_policy_fields_are_refused(unknown: str) -> None:
    options: Any = {unknown: 1}
    for create in (EffectPolicy, READ_ONLY.replace, effect):
        with pytest.raises(TypeError, match=unknown):
            create(**options)


def test_one_exception_type_is_stored_as_a_tuple() -> None:
    assert EffectPolicy(failed_on=ValueError).failed_on == (ValueError,)


def test_durations_are_timedeltas_or_seconds() -> None:
    policy = EffectPolicy(lease=90, wait_timeout=0.5, verify_after=timedelta(hours=1), idempotency_window=0)
    assert policy.lease == timedelta(seconds=90)
    assert policy.wait_timeout == timedelta(milliseconds=500)
    assert (policy.verify_after, policy.idempotency_window) == (timedelta(hours=1), timedelta(0))
    assert policy == policy.replace() == replace(policy, lease=timedelta(seconds=90))
    assert policy.replace(lease=5).lease == timedelta(seconds=5)
    assert Undetermined(1.5) == Undetermined(retry_in=timedelta(seconds=1.5))
    assert Undetermined().retry_in is None


def test_a_policy_is_immutable_and_hashable() -> None:
    with pytest.raises(FrozenInstanceError):
        READ_ONLY.read_only = False  # type: ignore[misc]
    assert {READ_ONLY: 1}[EffectPolicy(read_only=True)] == 1
    assert pickle.loads(pickle.dumps(READ_ONLY)) == READ_ONLY


def test_an_effect_log_needs_a_durable_saver(saver: DurableSaver) -> None:
    with pytest.raises(InvalidConfigError, match="DurableSaver"):
        log_in(InMemorySaver())
    assert saver.effects is saver.effects


@pytest.mark.parametrize(
    ("decorated", "match"),
    [(READ_ONLY, r"policy=\.\.\."), ("pay", "got str"), (partial(print), "needs a name=")],
    ids=repr,
)
def test_what_cannot_be_decorated_is_refused(decorated: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        effect(decorated)


def test_keywords_override_the_policy() -> None:
    """A read-only function runs without a log; the other one needs a log."""

    @effect(policy=READ_ONLY, lease=5)
    def look() -> str:
        return "seen"

    @effect(policy=READ_ONLY, read_only=False)
    def pay() -> str:
        return "paid"

    assert look() == "seen"
    with pytest.raises(EffectError, match="outside a running graph"):
        pay()


def test_a_name_that_cannot_be_stored_is_refused_at_once() -> None:
    with pytest.raises(InvalidConfigError, match="name holds a NUL"):
        effect(name="pay\0")(lambda: 1)


# --- decorated functions outside a graph ---


async def test_a_decorated_function_with_key_and_log(log: Log) -> None:
    ran = []
    decorate = effect(key=lambda order: order, log=log.inner, name="refund")
    if log.asynchronous:

        @decorate
        async def arefund(order: str) -> str:
            ran.append((order, current_effect().idempotency_key))
            return f"refunded {order}"

        results = [await arefund("1"), await arefund(order="1"), await arefund("2")]
    else:

        @decorate
        def refund(order: str) -> str:
            ran.append((order, current_effect().idempotency_key))
            return f"refunded {order}"

        results = [refund("1"), refund(order="1"), refund("2")]
    assert results == ["refunded 1", "refunded 1", "refunded 2"]
    assert [order for order, _ in ran] == ["1", "2"]
    assert [r.tool for r in await log.list()] == ["refund", "refund"]
    assert [r.args for r in await log.list()] == [{"order": "1"}, {"order": "2"}]


async def test_a_body_that_returns_a_coroutine_or_generator_is_refused(log: Log) -> None:
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


async def test_a_config_argument_is_compared_unless_it_is_langgraphs(log: Log) -> None:
    ran: list[Any] = []

    @effect(key="deploy", log=log.inner)
    def deploy(config: dict[str, int]) -> None:
        ran.append(config)

    deploy({"replicas": 1})
    with pytest.raises(EffectConflictError):
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


def test_a_decorated_function_outside_a_graph_needs_a_log_and_a_key(saver: DurableSaver) -> None:
    def refund(order: str) -> None:
        pytest.fail("it ran")

    for options in ({}, {"log": saver.effects}, {"key": "k"}):
        with pytest.raises(EffectError, match="outside a running graph"):
            effect(**options)(refund)("1")
    for key in (lambda order: "", lambda order: 3):
        with pytest.raises(EffectError, match="must be or return a non-empty str"):
            effect(key=key, log=saver.effects)(refund)("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        effect(key="k", log=saver.effects)(refund)()  # type: ignore[call-arg]
    assert list(saver.effects.list()) == []


async def test_read_only_functions_are_not_logged(log: Log) -> None:
    @effect(policy=READ_ONLY)
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


async def test_an_effect_takes_three_round_trips(proxy: Proxy, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        async with log.effect(key="warm") as e:
            await e.complete(1)
        trips = proxy.round_trips
        async with log.effect(key="other") as e:
            await e.complete(1)
        assert proxy.round_trips - trips == 3, "looked for, claimed, completed"
