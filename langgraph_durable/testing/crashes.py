"""Kill a process at a named point of a run, as a crash of the machine or `kill -9` would."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

from langgraph_durable._validation import require_seconds
from langgraph_durable.effects._storage.rows import ClaimKind
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.testing.operations import Event, Operation, watch

CrashPoint = Literal[
    "before effect",
    "effect begun",
    "effect done",
    "effect recorded",
    "before writes",
    "writes stored",
    "before checkpoint",
    "checkpoint stored",
]

_POINTS: dict[tuple[Operation, bool], CrashPoint] = {
    ("claim", False): "before effect",
    ("claim", True): "effect begun",
    ("complete", False): "effect done",
    ("complete", True): "effect recorded",
    ("put_writes", False): "before writes",
    ("put_writes", True): "writes stored",
    ("put", False): "before checkpoint",
    ("put", True): "checkpoint stored",
}

_KILLED = (-signal.SIGKILL, 255)
"""Exit codes of a killed process; the latter if the server that forked it does not know."""


def crash_at(
    point: CrashPoint,
    function: Callable[..., Any],
    *args: Any,
    occurrence: int = 1,
    timeout: float | timedelta = 60.0,
) -> None:
    """Run a function in a separate process, which is killed with SIGKILL when it comes to a point.

    The points are those of its DurableSaver:

    | Point | What is stored |
    |---|---|
    | `"before effect"` | nothing of the effect |
    | `"effect begun"` | that it may take place; its body has not run |
    | `"effect done"` | that it may take place; its body has returned |
    | `"effect recorded"` | its result |
    | `"before writes"`, `"writes stored"` | a task's pending writes: not yet, and already |
    | `"before checkpoint"`, `"checkpoint stored"` | a checkpoint: not yet, and already |

    Args:
        point: The point.
        function: The function, sync or async, of a module that can be imported. It makes its own saver and graph.
        *args: Its arguments, which must be picklable: a connection string, say.
        occurrence: How often it must come to the point, counted from 1.
        timeout: Seconds, or a timedelta, that it may take.

    Raises:
        AssertionError: The function returned without coming to the point, or raised; the message has its traceback.
        TimeoutError: It took too long; it was killed, too.
        InvalidConfigError: There is no such point, or an argument cannot be used.
    """
    if point not in get_args(CrashPoint):
        raise InvalidConfigError(
            f"there is no point {point!r}: pass one of {', '.join(get_args(CrashPoint))}"
        )
    if isinstance(occurrence, bool) or not isinstance(occurrence, int) or occurrence < 1:
        raise InvalidConfigError(f"occurrence must be an int >= 1, got {occurrence!r:.100}")
    seconds = require_seconds(timeout, "timeout")
    context = multiprocessing.get_context("forkserver")
    ours, its = context.Pipe()
    process = context.Process(target=_run, args=(point, occurrence, function, args, its), daemon=True)
    process.start()
    its.close()
    try:
        if not ours.poll(seconds):
            raise TimeoutError(f"{function.__qualname__} did not come to {point!r} within {seconds:g} s")
        message = _receive(ours)
        process.join()
        if message is not None or process.exitcode not in _KILLED:
            raise AssertionError(
                f"{function.__qualname__} did not come to {point!r} {occurrence} times: "
                f"{message or f'its process ended with {process.exitcode}'}"
            )
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _receive(pipe: Connection) -> str | None:
    """Return how the function ended; None if it was killed."""
    try:
        message: str = pipe.recv()
    except (EOFError, ConnectionResetError):
        return None
    return message


def _run(
    point: CrashPoint, occurrence: int, function: Callable[..., Any], args: tuple[Any, ...], pipe: Connection
) -> None:
    left = occurrence

    def observe(event: Event) -> None:
        nonlocal left
        if _POINTS.get((event.operation, event.ended)) != point or not _begins(event):
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(observe)
    try:
        returned = function(*args)
        if inspect.iscoroutine(returned):
            asyncio.run(returned)
    except BaseException:  # the parent raises it
        pipe.send(f"it raised\n\n{traceback.format_exc()}")
    else:
        pipe.send("it returned")


def _begins(event: Event) -> bool:
    """Return whether a claim, if it is one, begins an attempt instead of finding one."""
    return event.operation != "claim" or not event.ended or event.result[0] is ClaimKind.CLAIMED
