"""What is known of an effect from outside, and what to do where nothing is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from langgraph_durable.errors import InvalidConfig

if TYPE_CHECKING:
    from langgraph_durable._effect_records import EffectRecord

Scope: TypeAlias = Literal["call", "step", "thread", "global"]
OnUnknown: TypeAlias = Literal["verify", "ask", "retry", "raise"]
OnFork: TypeAlias = Literal["replay", "new", "ask", "raise"]


_LONGEST_LEASE = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect took place; `result` is what the tool would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """The effect did not take place, and what was sent will not make it so."""


@dataclass(frozen=True, slots=True)
class Undetermined:
    """Nobody can say yet; ask again after `retry_in`, if given."""

    retry_in: timedelta | None = None


Finding: TypeAlias = Happened | NotHappened | Undetermined
Verify: TypeAlias = "Callable[[EffectRecord], Finding | Awaitable[Finding]]"


@dataclass(frozen=True, slots=True)
class EffectPolicy:
    """How an effect is kept to once.

    Attributes:
        verify: Asks the vendor what became of an attempt that may have reached it: whose end is unknown, whose
            connection was refused (it may be the second one), or whose body waited for a human by `interrupt()` and
            is to run again. Sync, or async for async tools.
        on_unknown: What to do when that is unknown and `verify`, if any, cannot tell: "ask" a human by an
            interrupt; "retry", for a vendor that honours `vendor_key`; "raise" EffectUnknown. "verify" is
            "raise", and says that `verify` must be given.
        idempotent: Running the tool again is harmless: an unknown end is run again.
        read_only: The tool changes nothing: it is not logged at all.
        scope: What makes two calls one effect: the same "call" of the model (or of the code), the same arguments
            within the "step", within the "thread", or ever ("global").
        failed_on: Exceptions which tell for certain that nothing happened. Without `verify`, refused connections do,
            too, so a body that makes several requests must not let the refusal of a later one pass; their attempt's
            vendor key is kept. Both tell so of one attempt: if the one before it is unknown, the effect stays so, and
            keeps its vendor key.
        settle: How long after an attempt ended or waited, or its lease ended, NotHappened is not yet believed, for
            vendors that take their time.
        vendor_window: How long the vendor honours an idempotency key; past it "retry" is "ask".
        lease: Time until an owner that gave no sign may be taken for dead; on the server's clock.
        wait: How long to wait for an attempt that goes on elsewhere, or for `settle` or `Undetermined`.
        on_fork: What another branch of the thread's history gets that comes to a finished effect again: its
            outcome ("replay"), an effect of its own ("new"), what a human says ("ask"), or EffectForked ("raise").
            Running again from an old checkpoint makes a branch too.
    """

    verify: Verify | None = None
    on_unknown: OnUnknown = "raise"
    idempotent: bool = False
    read_only: bool = False
    scope: Scope = "call"
    failed_on: type[BaseException] | tuple[type[BaseException], ...] = ()
    settle: timedelta = timedelta(0)
    vendor_window: timedelta | None = None
    lease: timedelta = timedelta(seconds=30)
    wait: timedelta = timedelta(seconds=60)
    on_fork: OnFork = "replay"

    def __post_init__(self) -> None:
        if self.on_unknown not in ("verify", "ask", "retry", "raise"):
            raise InvalidConfig(
                f'on_unknown must be "verify", "ask", "retry" or "raise", got {self.on_unknown!r}'
            )
        if self.scope not in ("call", "step", "thread", "global"):
            raise InvalidConfig(f'scope must be "call", "step", "thread" or "global", got {self.scope!r}')
        if self.on_fork not in ("replay", "new", "ask", "raise"):
            raise InvalidConfig(f'on_fork must be "replay", "new", "ask" or "raise", got {self.on_fork!r}')
        if self.verify is not None and not callable(self.verify):
            raise InvalidConfig(f"verify must be a function that asks the vendor, got {self.verify!r:.100}")
        if self.on_unknown == "verify" and self.verify is None:
            raise InvalidConfig('on_unknown="verify" needs verify=: a function that asks the vendor')
        failed_on = self.failed_on if isinstance(self.failed_on, tuple) else (self.failed_on,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in failed_on):
            raise InvalidConfig(f"failed_on must be types of exceptions, got {self.failed_on!r:.100}")
        object.__setattr__(self, "failed_on", failed_on)
        for name in ("lease", "settle", "wait", "vendor_window"):
            time = getattr(self, name)
            if time is None and name == "vendor_window":
                continue
            if not isinstance(time, timedelta) or time < timedelta(0) or (name == "lease" and not time):
                raise InvalidConfig(f"{name} must be a timedelta longer than nothing, got {time!r:.100}")
        if self.lease > _LONGEST_LEASE:  # which the server could not reckon with
            raise InvalidConfig(f"lease must be at most {_LONGEST_LEASE}, got {self.lease}")

    def but(self, **changes: Any) -> EffectPolicy:
        """Return this policy with some attributes changed."""
        return replace(self, **changes)


READ_ONLY = EffectPolicy(read_only=True)
"""For tools that change nothing."""

IDEMPOTENT = EffectPolicy(idempotent=True)
"""For tools that may run again with the same arguments."""
