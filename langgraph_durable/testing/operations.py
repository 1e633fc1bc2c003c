"""Watch the operations of savers and effect logs in this process, from just before to just after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from langgraph_durable import saver as _saver
from langgraph_durable.effects._storage import store

Operation = Literal["claim", "issue", "complete", "put", "put_writes"]


@dataclass(frozen=True)
class Event:
    """An operation that begins or has ended."""

    operation: Operation
    ended: bool
    args: tuple[Any, ...]
    """The arguments of the function that carries it out."""
    result: Any = None
    """What it returned, if it has ended."""


def watch(observe: Callable[[Event], None]) -> None:
    """Call a function before and after each operation of this process, from now on."""
    facade: Any = _saver  # the facade imports these functions, so they are replaced there
    effects: Any = store
    facade.put_checkpoint = _observed(facade.put_checkpoint, lambda args: "put", observe)
    facade.put_writes = _observed(facade.put_writes, lambda args: "put_writes", observe)
    effects.claim_effect = _observed(effects.claim_effect, lambda args: "claim", observe)
    effects.move_effect = _observed(effects.move_effect, _kind_of_move, observe)


_MOVES: dict[str, Operation] = {"issued": "issue", "completed": "complete"}


def _kind_of_move(args: tuple[Any, ...]) -> Operation | None:
    _, _, transition = args
    return _MOVES.get(transition.outcome.state)


def _observed(
    operate: Callable[..., Awaitable[Any]],
    kind_of: Callable[[tuple[Any, ...]], Operation | None],
    observe: Callable[[Event], None],
) -> Callable[..., Awaitable[Any]]:
    async def observed(*args: Any, **kwargs: Any) -> Any:
        if (kind := kind_of(args)) is None:
            return await operate(*args, **kwargs)
        observe(Event(kind, False, args))
        result = await operate(*args, **kwargs)
        observe(Event(kind, True, args, result))
        return result

    return observed
