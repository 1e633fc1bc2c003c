"""Effect policies: what to do when it is unknown whether an effect took place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from typing_extensions import Unpack

from langgraph_durable.effects.records import EffectRecord
from langgraph_durable.errors import InvalidConfigError

Scope: TypeAlias = Literal["call", "step", "thread", "global"]
OnUnknown: TypeAlias = Literal["ask", "retry", "raise"]
OnFork: TypeAlias = Literal["replay", "new", "ask", "raise"]
OnUndelivered: TypeAlias = Literal["replay", "new", "ask", "raise"]

_DAY = timedelta(days=1)
_MAX_LEASE = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect took place; `result` is what the tool would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """The effect did not take place, and nothing already sent can still cause it."""


@dataclass(frozen=True, slots=True, init=False)
class Undetermined:
    """The provider cannot say yet; it is asked again after `retry_in`, if given."""

    retry_in: timedelta | None

    def __init__(self, retry_in: timedelta | float | None = None) -> None:
        """Create the finding; `retry_in` is a timedelta or seconds."""
        object.__setattr__(self, "retry_in", None if retry_in is None else _timedelta(retry_in, "retry_in"))


DecisionWord: TypeAlias = Literal["happened", "not_happened", "retry", "failed", "abandon"]
"""A decision on an effect in words, the same in code, in answers to questions, and on the command line."""

Finding: TypeAlias = Happened | NotHappened | Undetermined
Verify: TypeAlias = Callable[[EffectRecord], Finding | Awaitable[Finding]]


class PolicyFields(TypedDict, total=False):
    """The fields of EffectPolicy, as keywords."""

    verify: Verify | None
    on_unknown: OnUnknown
    idempotent: bool
    read_only: bool
    scope: Scope
    failed_on: type[BaseException] | tuple[type[BaseException], ...]
    verify_after: timedelta | float
    idempotency_window: timedelta | float | None
    lease: timedelta | float
    wait_timeout: timedelta | float
    timeout: timedelta | float | None
    on_fork: OnFork
    on_undelivered: OnUndelivered
    duplicate_window: timedelta | float | None


@dataclass(frozen=True, slots=True, init=False)
class EffectPolicy:
    """How an effect is carried out at most once. Durations are timedeltas, or seconds.

    Attributes:
        verify: Asks the provider what became of an earlier attempt: one whose outcome is unknown, whose connection was
            refused (an earlier try of the same client may have arrived), or whose body waited for a human by
            `interrupt()` and is about to run again. May be async for async tools.
        on_unknown: What to do when the outcome is unknown and `verify`, if given, cannot tell: "ask" a human by an
            interrupt; "retry", for a provider that honours `idempotency_key`; "raise" EffectUnknownError.
        idempotent: Running the tool again is harmless: after an unknown outcome it runs again.
        read_only: The tool changes nothing and is not logged.
        scope: What makes two calls one effect: the same "call" of the model or of the code, or the same arguments
            within the "step", within the "thread", or in the whole database ("global").
        failed_on: Exceptions that prove that nothing happened. Without `verify`, a refused connection proves it too,
            so a body that makes several requests must handle the refusal of a later one. After a refusal the
            idempotency key stays the same. Either proves it only of the attempt that ended so: if an earlier attempt
            is unknown, the effect stays unknown and keeps its idempotency key.
        verify_after: Time for which NotHappened is not yet believed, for slow providers. Counted from when the attempt
            ended, waited for a human, or lost its lease.
        idempotency_window: How long the provider honours an idempotency key. After it, "retry" becomes "ask".
        lease: Time after which an owner that stopped renewing its lease is considered dead, on the server's clock.
        wait_timeout: How long to wait for an attempt in flight elsewhere, for `verify_after`, or for `Undetermined`.
        timeout: How long the body may run. An async body is then cancelled, and its effect is unknown. A sync body
            cannot be stopped: its lease is no longer renewed, so that others may decide on the effect once the lease
            has ended. If they do, the body's late end is refused. The same goes for a block of `effects.effect()`. By
            default a body may run for ever.
        on_fork: What another branch of the thread's history gets when it comes to a completed effect: its outcome
            ("replay"), a separate effect ("new"), a human's decision ("ask"), or EffectForkedError ("raise"). Running
            again from an old checkpoint creates a branch too.
        on_undelivered: What a call gets that asks for what an equal call did before, in a step that was dropped, and
            whose result no state has: that outcome, once ("replay"), a separate effect ("new"), a human's decision
            ("ask"), or EffectDuplicateError ("raise").
        duplicate_window: How long ago an attempt may be for its outcome to be given to an equal call without asking.
            An older one is asked about, or raises EffectDuplicateError. None: any time.
    """

    verify: Verify | None
    on_unknown: OnUnknown
    idempotent: bool
    read_only: bool
    scope: Scope
    failed_on: tuple[type[BaseException], ...]
    verify_after: timedelta
    idempotency_window: timedelta | None
    lease: timedelta
    wait_timeout: timedelta
    timeout: timedelta | None
    on_fork: OnFork
    on_undelivered: OnUndelivered
    duplicate_window: timedelta | None

    def __init__(  # noqa: PLR0913 (keyword-only, so that editors complete them)
        self,
        *,
        verify: Verify | None = None,
        on_unknown: OnUnknown = "raise",
        idempotent: bool = False,
        read_only: bool = False,
        scope: Scope = "call",
        failed_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        verify_after: timedelta | float = 0,
        idempotency_window: timedelta | float | None = None,
        lease: timedelta | float = 30,
        wait_timeout: timedelta | float = 60,
        timeout: timedelta | float | None = None,
        on_fork: OnFork = "replay",
        on_undelivered: OnUndelivered = "replay",
        duplicate_window: timedelta | float | None = _DAY,
    ) -> None:
        """Create a policy.

        Raises:
            InvalidConfigError: A field has a value that it cannot have.
        """
        if verify is not None and not callable(verify):
            raise InvalidConfigError(f"verify must be a function that asks the provider, got {verify!r:.100}")
        _require_choice(on_unknown, "on_unknown", OnUnknown)
        _require_choice(scope, "scope", Scope)
        _require_choice(on_fork, "on_fork", OnFork)
        _require_choice(on_undelivered, "on_undelivered", OnUndelivered)
        if timeout is not None and not (timeout := _duration(timeout, "timeout")):
            raise InvalidConfigError(
                "timeout must be greater than 0. None means that the body may run for ever"
            )
        fields = {
            "verify": verify,
            "on_unknown": on_unknown,
            "idempotent": idempotent,
            "read_only": read_only,
            "scope": scope,
            "failed_on": _exception_types(failed_on),
            "verify_after": _duration(verify_after, "verify_after"),
            "idempotency_window": _window(idempotency_window, "idempotency_window"),
            "lease": _lease(lease),
            "wait_timeout": _duration(wait_timeout, "wait_timeout"),
            "timeout": timeout,
            "on_fork": on_fork,
            "on_undelivered": on_undelivered,
            "duplicate_window": _window(duplicate_window, "duplicate_window"),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def replace(self, **changes: Unpack[PolicyFields]) -> EffectPolicy:
        """Return a copy of this policy with some fields changed.

        Raises:
            InvalidConfigError: A field has a value that it cannot have.
        """
        return replace(self, **cast("dict[str, Any]", changes))


def _require_choice(value: object, name: str, choices: Any) -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r:.100}")


def _exception_types(given: Any) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidConfigError(
            f"failed_on must be an exception type or a tuple of them, got {given!r:.100}"
        )
    return kinds


def _lease(given: Any) -> timedelta:
    lease = _duration(given, "lease")
    if not lease:
        raise InvalidConfigError("lease must be greater than 0")
    if lease > _MAX_LEASE:  # Postgres could not add it to the current time
        raise InvalidConfigError(f"lease must be at most {_MAX_LEASE}, got {lease}")
    return lease


def _window(given: Any, name: str) -> timedelta | None:
    return None if given is None else _duration(given, name)


def _duration(given: Any, name: str) -> timedelta:
    duration = _timedelta(given, name)
    if duration < timedelta(0):
        raise InvalidConfigError(f"{name} must not be negative, got {given!r:.100}")
    return duration


def _timedelta(given: Any, name: str) -> timedelta:
    if isinstance(given, timedelta):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        try:
            return timedelta(seconds=given)
        except (OverflowError, ValueError):  # infinite, too large, or not a number
            pass
    raise InvalidConfigError(f"{name} must be a timedelta or a number of seconds, got {given!r:.100}")


READ_ONLY = EffectPolicy(read_only=True)
"""For tools that change nothing."""

IDEMPOTENT = EffectPolicy(idempotent=True)
"""For tools that may safely run again with the same arguments."""
