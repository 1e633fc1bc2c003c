"""Faults that the law must find: each is restored by switching off what mends it.

A fault is only listed as possible if this version has what is switched off. `concerns` leaves out programs that cannot
show it, to save time: the count of programs in what is printed includes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.property.effect_law.programs import Case, Flow, Talk

_EFFECTS = "langgraph_durable.effects"


@dataclass(frozen=True)
class RestoredFault:
    """A fault, and how to restore it in this process."""

    name: str
    what: str
    """What goes wrong then."""
    target: str
    """What is replaced: module:attribute, or module:class.attribute, below the package of effects."""
    replacement: Callable[[Any], Any]
    """Returns what replaces the target, given the target."""
    concerns: Callable[[Case], bool] = lambda case: True

    def _owner(self) -> tuple[Any, str]:
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(f"{_EFFECTS}.{module}")
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name

    def is_possible(self) -> bool:
        try:
            owner, name = self._owner()
        except (ImportError, AttributeError):
            return False
        return hasattr(owner, name)

    def restore(self) -> None:
        """Put the fault back into this process."""
        owner, name = self._owner()
        setattr(owner, name, self.replacement(owner.__dict__[name]))


def _asks(case: Case) -> bool:
    return isinstance(case.program, Talk) and case.program.ask == "after"


def _has_argument(kind: str) -> Callable[[Case], bool]:
    return lambda case: isinstance(case.program, Flow) and case.program.argument == kind


def _is_refused(case: Case) -> bool:
    return any(action.fault is not None and action.fault.kind == "refuse" for action in case.actions)


def _fails_when_refused(state_after: Any) -> Any:
    def changed(call: Any, attempt: Any, exc: BaseException, **options: Any) -> Any:
        if isinstance(exc, ConnectionRefusedError):
            return "failed", True
        return state_after(call, attempt, exc, **options)

    return changed


def _nothing(_: Any) -> Any:
    return lambda *args, **kwargs: None


FAULTS = (
    RestoredFault(
        "suspended_repeats",
        "a body that sent its request and then waited for a human runs again, and verify is not asked",
        "_attempt:EffectCall.resumes",
        lambda _: property(lambda call: True),
        _asks,
    ),
    RestoredFault(
        "refused_is_failed",
        "a refused connection counts as a proof that nothing happened, although verify could be asked",
        "_run:_state_after",
        _fails_when_refused,
        _is_refused,
    ),
    RestoredFault(
        "hidden_arguments",
        "arguments that differ are hashed alike",
        "_keys:_require_transparent",
        _nothing,
        _has_argument("secret"),
    ),
    RestoredFault(
        "consumed_iterators",
        "hashing an iterator leaves nothing of it for the body",
        "_keys:_require_transparent",
        _nothing,
        _has_argument("iterator"),
    ),
)
