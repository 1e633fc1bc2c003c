"""What type checkers are to see of effects; read by test_types.py, never run.

After a `reveal_type` come what pyright must print and what mypy must print. Lines with
`# type: ignore[...]` must be errors to both, because both report an ignore that is not needed.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=error, reportUnusedFunction=false

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta

from typing_extensions import assert_type, reveal_type

from langgraph_durable import READ_ONLY, EffectPolicy, Happened, NotHappened, current_effect, effect
from langgraph_durable.effects import EffectLog, EffectRecord, Finding, RunningEffect, Undetermined


def verify(record: EffectRecord) -> Finding:
    return Happened(record.args) if record.attempts else NotHappened()


async def averify(record: EffectRecord) -> Finding:
    return Undetermined(retry_in=2.5)


def key_of(invoice: str) -> str:
    return invoice


def no_verify() -> Finding:
    return Happened()


# --- a decorated function keeps its signature ---


@effect
def bare(invoice: str, cents: int = 0) -> str:
    return f"{invoice}: {cents}"


reveal_type(bare)
# pyright sees (invoice: str, cents: int = 0) -> str
# mypy sees def (invoice: str, cents: int =) -> str


@effect()
def called(invoice: str) -> str:
    return invoice


reveal_type(called)
# pyright sees (invoice: str) -> str
# mypy sees def (invoice: str) -> str


@effect(
    verify=verify,
    on_unknown="ask",
    idempotent=False,
    read_only=False,
    scope="thread",
    failed_on=(ValueError, KeyError),
    verify_after=timedelta(seconds=3),
    idempotency_window=3600,
    lease=30,
    wait_timeout=0.5,
    on_fork="new",
    policy=READ_ONLY,
    key="k",
    log=None,
    name="pay",
)
def with_keywords(invoice: str, *, cents: int) -> dict[str, int]:
    return {invoice: cents}


reveal_type(with_keywords)
# pyright sees (invoice: str, *, cents: int) -> dict[str, int]
# mypy sees def (invoice: str, *, cents: int) -> dict[str, int]


@effect
async def abare(invoice: str) -> int:
    return len(invoice)


reveal_type(abare)
# pyright sees (invoice: str) -> CoroutineType[Any, Any, int]
# mypy sees def (invoice: str) -> typing.Coroutine[Any, Any, int]


@effect(verify=averify, failed_on=ValueError, key=key_of)
async def awith_keywords(invoice: str) -> int:
    return len(invoice)


reveal_type(awith_keywords)
# pyright sees (invoice: str) -> CoroutineType[Any, Any, int]
# mypy sees def (invoice: str) -> typing.Coroutine[Any, Any, int]

bare(3)  # type: ignore[arg-type]
with_keywords("7", 42)  # type: ignore[call-arg]

# --- mistakes are refused ---

effect(on_unkown="ask")  # type: ignore[call-overload]
effect(on_unknown="verify")  # type: ignore[call-overload]
effect(lease="30 s")  # type: ignore[call-overload]
effect(verify=no_verify)  # type: ignore[arg-type]
effect(READ_ONLY)  # type: ignore[call-overload]
EffectPolicy(settle=3)  # type: ignore[call-arg]
EffectPolicy(scope="run")  # type: ignore[arg-type]
READ_ONLY.replace(window=3)  # type: ignore[call-arg]
READ_ONLY.replace(lease="30 s")  # type: ignore[arg-type]

# --- policies, and the effect that runs ---

policy = EffectPolicy(lease=30, failed_on=ValueError).replace(wait_timeout=timedelta(minutes=1))
assert_type(policy, EffectPolicy)
assert_type(policy.lease, timedelta)
assert_type(policy.idempotency_window, timedelta | None)
assert_type(policy.failed_on, tuple[type[BaseException], ...])

running = current_effect()
assert_type(running, RunningEffect)
assert_type(running.idempotency_key, str)
assert_type(running.first_attempt_at, datetime)
running.attempts = 2  # type: ignore[misc]


# --- the log ---


def send() -> str:
    return "sent"


async def asend() -> str:
    return "sent"


async def use(log: EffectLog) -> None:
    assert_type(log.run("mail", key="k", body=send, args={"to": "ann"}, policy=policy), str)
    assert_type(await log.arun("mail", key="k", body=asend), str)
    await log.arun("mail", key="k", body=send)  # type: ignore[arg-type]
    assert_type(log.list(state="unknown"), Iterator[EffectRecord])
    assert_type(log.alist(state=["unknown", "issued"], limit=3), AsyncIterator[EffectRecord])
    log.list(state="done")  # type: ignore[arg-type]
    assert_type(log.pending(), list[EffectRecord])
    assert_type(await log.apending(), list[EffectRecord])
    with log.effect("mail", key="k") as e:
        assert_type(e.complete("sent"), None)
    async with log.aeffect("mail", key="k") as ae:
        await ae.complete("sent")
