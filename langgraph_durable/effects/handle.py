"""Effects as the code that carries them out sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, current_attempt
from langgraph_durable.effects._protocol.run import complete, fail, issue
from langgraph_durable.effects.records import Source, State
from langgraph_durable.errors import EffectError


@dataclass(frozen=True, slots=True)
class RunningEffect:
    """The effect whose body is running."""

    effect_id: str
    """Its ULID."""
    idempotency_key: str
    """The key to send to the provider: it changes only after an attempt definitely failed."""
    attempts: int
    """How many attempts there were, including this one."""
    first_attempt_at: datetime
    """When the first attempt began, by the server's clock."""


def current_effect() -> RunningEffect:
    """Return the effect whose body is running.

    Raises:
        EffectError: No effect is running here.
    """
    attempt = current_attempt()
    if attempt is None:
        raise EffectError(
            "no effect is running here. Call current_effect() inside a function decorated with @effect, a body given "
            "to effects.run(), or an effects.effect() block. In a thread that the body starts, run the function by "
            "contextvars.copy_context().run, or start it by asyncio.to_thread, which does that",
            see="no-effect-is-running",
        )
    row = attempt.row
    return RunningEffect(
        format_ulid(row.effect_id), attempt.idempotency_key, row.attempts, row.first_attempt_at
    )


class _Handle:
    """What sync and async code know of an effect they carry out."""

    def __init__(self, call: EffectCall, attempt: Attempt) -> None:
        self._call = call
        self._attempt = attempt

    @property
    def effect_id(self) -> str:
        """Its ULID."""
        return format_ulid(self._attempt.row.effect_id)

    @property
    def idempotency_key(self) -> str:
        """The key to send to the provider: it changes only after an attempt definitely failed."""
        return self._attempt.idempotency_key

    @property
    def replayed(self) -> bool:
        """Whether it took place before. Do not repeat it; `result` is the recorded result."""
        return self._attempt.replayed

    @property
    def result(self) -> Any:
        """The result, once completed."""
        return self._attempt.value

    @property
    def attempts(self) -> int:
        """How many attempts there were, including this one."""
        return self._attempt.row.attempts

    @property
    def first_attempt_at(self) -> datetime:
        """When the first attempt began, by the server's clock."""
        return self._attempt.row.first_attempt_at

    @property
    def source(self) -> Source | None:
        """How the outcome is known: "executed", "verified" or "human"."""
        return self._attempt.row.source  # type: ignore[return-value] # as the statements of this package wrote it

    @property
    def state(self) -> State:
        """The effect's state, as far as this code knows."""
        return self._attempt.row.state

    def _require_attempted(self) -> None:
        if self.replayed:
            raise EffectError(
                f"effect {self.effect_id} took place before. Check `replayed`, and use `result` instead of repeating it"
            )

    async def _issue(self) -> None:
        self._require_attempted()
        await issue(self._call, self._attempt)

    async def _complete(self, result: Any) -> None:
        self._require_attempted()
        await complete(self._call, self._attempt, result)
        if not self.replayed:  # others found out meanwhile that it took place: their result is recorded
            self._attempt.value = result

    async def _fail(self, error: str) -> None:
        self._require_attempted()
        await fail(self._call, self._attempt, error)


class Effect(_Handle):
    """An effect carried out by sync code.

    Its methods raise EffectSupersededError if another owner took the effect over, and EffectError if it is `replayed`.
    """

    def issue(self) -> None:
        """Record that what follows may reach the outside world, if it began with issued=False.

        For an effect that is already issued, only check that no other owner has taken it over.
        """
        run_sync(self._issue())

    def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        run_sync(self._complete(result))

    def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        run_sync(self._fail(error))


class AsyncEffect(_Handle):
    """An effect carried out by async code; see `Effect`."""

    async def issue(self) -> None:
        """Record that what follows may reach the outside world; see `Effect.issue`."""
        await self._issue()

    async def complete(self, result: Any = None) -> None:
        """Record that it took place, and its result."""
        await self._complete(result)

    async def fail(self, error: str) -> None:
        """Record that it definitely did not take place."""
        await self._fail(error)
