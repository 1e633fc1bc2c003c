"""A call of a tool, made ready to be kept to once: which effect it is, where it is logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langgraph_durable._postgres.database import Database
from langgraph_durable.effects._attempt import Attempt, EffectCall
from langgraph_durable.effects._encoding import request_of
from langgraph_durable.effects._keys import canonical, digest, named_key
from langgraph_durable.effects._location import Place, ToolCall, key_of
from langgraph_durable.effects._results import give
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.errors import EffectError

UNNAMED: Any = object()
"""In place of a key: the call is told from others by where it comes from."""


def is_effect(function: Any) -> bool:
    """Tell whether a function's body is kept to once already."""
    return bool(getattr(function, "__effect__", False))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that can be run."""

    log: EffectLog
    guard: EffectCall
    call: ToolCall | None

    async def run(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """Run a body as this call's effect, or give its outcome."""
        return (await self.run_attempt(body))[0]

    async def run_attempt(self, body: Callable[[], Awaitable[Any]]) -> tuple[Any, Attempt]:
        """Run a body, or give its outcome, and tell which attempt it is of."""
        attempt = await self.log._run(self.guard, body)
        return give(attempt, self.call), attempt


def prepare(
    log: EffectLog,
    name: str,
    policy: EffectPolicy,
    arguments: dict[str, Any],
    place: Place | None,
    call: ToolCall | None,
    *,
    key: Any = UNNAMED,
    asynchronous: bool,
) -> Prepared:
    """Find out which effect a call is.

    Raises:
        EffectError: Nothing tells it from others.
    """
    if key is not UNNAMED:
        if not isinstance(key, str) or not key:
            raise EffectError(f"the key= of {name!r} must give text, got {key!r}")
        key_ = named_key(name, key)
    elif place is None:
        raise EffectError(
            f"{name!r} was called outside of a running graph, where nothing tells one call from another: give "
            "@effect(...) a key="
        )
    else:
        key_ = key_of(policy.scope, name, digest(name, canonical(arguments)), place, call)
    kept = request_of(
        log.serde,
        name,
        "key" if key is not UNNAMED else policy.scope,
        key_,
        arguments,
        place,
        message_id=call.message_id if call is not None else None,
        tool_call_id=call.tool_call_id if call is not None else None,
    )
    db: Database = log.context.adb if asynchronous else log.context.db
    named = key is not UNNAMED or policy.scope in ("thread", "global")
    is_alone = call is None or call.is_alone
    return Prepared(log, log._guard(db, kept, policy, place, named=named, is_alone=is_alone), call)
