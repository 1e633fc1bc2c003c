"""TODO."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._attempt import Attempt, EffectCall, current_attempt
from langgraph_durable.effects._run import complete, fail, issue
from langgraph_durable.effects.records import State
from langgraph_durable.errors import (
    EffectError,
)

if TYPE_CHECKING:
    pass


class EffectHandle:
    """An effect, to the code that carries it out."""

    def __init__(self, guard: EffectCall | None, attempt: Attempt) -> None:
        self._guard = guard
        self._attempt = attempt

    @property
    def effect_id(self) -> str:
        """Its ULID."""
        return format_ulid(self._attempt.row.effect_id)

    @property
    def idempotency_key(self) -> str:
        """The idempotency key to send to the vendor: it changes only after an attempt definitely failed."""
        return self._attempt.idempotency_key

    @property
    def replayed(self) -> bool:
        """Whether it took place before: do not do it again; `result` is what came of it."""
        return self._attempt.replayed

    @property
    def result(self) -> Any:
        """What came of it, if it was completed."""
        return self._attempt.value

    @property
    def attempts(self) -> int:
        """How many there were, with this one."""
        return self._attempt.row.attempts

    @property
    def first_attempt_at(self) -> datetime:
        """When the first one began, by the server's clock."""
        return self._attempt.row.first_attempt_at

    @property
    def source(self) -> str | None:
        """How the result is known: "executed", "verified" or "human"."""
        return self._attempt.row.source

    @property
    def state(self) -> State:
        """The effect's state, as far as this code knows."""
        return self._attempt.row.state

    def _check(self) -> EffectCall:
        if self._guard is None:
            raise EffectError("this effect's end is recorded by whoever runs it, when the body ends")
        if self.replayed:
            raise EffectError(
                f"effect {self.effect_id} took place before: look at `replayed`, and use `result` instead of doing it"
            )
        return self._guard

    async def _issue(self) -> None:
        await issue(self._check(), self._attempt)

    async def _complete(self, result: Any) -> None:
        await complete(self._check(), self._attempt, result)
        self._attempt.value = result

    async def _fail(self, error: str) -> None:
        await fail(self._check(), self._attempt, error)


class Effect(EffectHandle):
    """An effect in the hands of sync code.

    Its methods raise EffectSupersededError if another owner took it over, and EffectError if it is `replayed`.
    """

    def issue(self) -> None:
        """Record that what follows may reach the outside world, if it was begun with issued=False.

        Of one that is issued already, this only makes sure that no other owner has taken it over.
        """
        run_sync(self._issue())

    def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        run_sync(self._complete(result))

    def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        run_sync(self._fail(error))


class AsyncEffect(EffectHandle):
    """An effect in the hands of async code; see `Effect`."""

    async def issue(self) -> None:
        """Record that what follows may reach the outside world, if it was begun with issued=False.

        Of one that is issued already, this only makes sure that no other owner has taken it over.
        """
        await self._issue()

    async def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        await self._complete(result)

    async def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        await self._fail(error)


def current_effect() -> EffectHandle:
    """Return the effect whose body runs here.

    Raises:
        EffectError: No effect's body runs here.
    """
    attempt = current_attempt()
    if attempt is None:
        raise EffectError(
            "no effect runs here: call current_effect() inside a function decorated with @effect"
        )
    return EffectHandle(None, attempt)
