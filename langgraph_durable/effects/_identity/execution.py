"""What one execution of a task knows of itself: its calls so far, and a human's answers to the task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

_RESUME = "__resume__"
"""LangGraph's channel of a human's answers."""


class Calls:
    """The calls that one execution of a task, or one attempt at an effect, has made so far."""

    def __init__(self) -> None:
        self._counters: dict[Any, itertools.count[int]] = {}
        self._numbers: dict[Any, tuple[int, Any]] = {}
        self.keys: set[bytes] = set()
        """The keys of the calls that are identified by their arguments."""

    def count(self, what: Any) -> int:
        """Return how often this was called before for `what`. Atomic in CPython, so safe across threads."""
        return next(self._counters.setdefault(what, itertools.count()))

    def number(self, what: Any, source: Any, position: Any) -> int:
        """Return how often this was called before for `what` by other sources: one that comes again is not counted."""
        known = self._numbers.get((what, id(source), position))
        if known is None:
            # The source is kept, because another one could get its id.
            known = (self.count(what), source)
            self._numbers[what, id(source), position] = known
        return known[0]


class _Task:
    """What the executions of one task share: a retry of the task gets the answers of the try before."""

    def __init__(self, scratchpad: Any, resume_map: Mapping[str, Any] | None) -> None:
        self.resume: list[Any] | None = getattr(scratchpad, "resume", None)
        null_resume = getattr(scratchpad, "get_null_resume", None)
        # Not the function itself, nor the scratchpad, which has it: that would keep this object in memory.
        self._null_resume = ref(null_resume) if null_resume is not None else None
        self.resume_map = resume_map or {}
        self.answers: list[Any] = []
        self.executions: dict[int, tuple[Any, Execution]] = {}
        self.lock = threading.Lock()

    def unaddressed(self, *, consume: bool = False) -> Any:
        """Return the answer that this run brought for any interrupt, or None; `consume` takes it away."""
        get = self._null_resume() if self._null_resume is not None else None
        return get(consume) if get is not None else None


class Execution:
    """One execution of one task: the calls start afresh when the task runs again."""

    def __init__(self, task: _Task | None = None) -> None:
        self._task = task or _Task(None, None)
        self.calls = Calls()
        self.running = 0
        """The number of this execution's calls that have neither ended nor stopped to wait for a human."""

    @contextmanager
    def one_running(self) -> Iterator[None]:
        """Count a call as running."""
        with self._task.lock:
            self.running += 1
        try:
            yield
        finally:
            with self._task.lock:
                self.running -= 1

    def take_answers(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Take the wanted answers away from LangGraph, so that no `interrupt()` gets one.

        Returns:
            All answers taken so far, newest first.
        """
        task = self._task
        if task.resume is None:
            return []
        with task.lock:
            taken = [answer for answer in task.resume if wanted(answer)]
            if taken:
                task.resume[:] = [answer for answer in task.resume if not wanted(answer)]
            unaddressed = task.unaddressed()
            if unaddressed is not None and wanted(unaddressed):
                taken.append(task.unaddressed(consume=True))
            task.answers[:0] = reversed(taken)
            return list(task.answers)

    def used_answers(self) -> list[Any]:
        """Return the answers that this execution's `interrupt()` calls returned, in their order."""
        return list(self._task.resume or ())

    def is_mapped(self, answer: Any) -> bool:
        """Return whether an answer came by the id of its interrupt; LangGraph stores those only as the task's."""
        return any(answer is mapped for mapped in self._task.resume_map.values())

    def keep_answers(self, send: Callable[[list[tuple[str, Any]]], object]) -> None:
        """Have LangGraph store the answers that the body has not received yet, as its `interrupt()` would.

        LangGraph drops an answer that no interrupt took when the next one comes.
        """
        task = self._task
        if task.resume is None:
            return
        with task.lock:
            if (answer := task.unaddressed(consume=True)) is not None:
                task.resume.append(answer)
            if task.resume:
                send([(_RESUME, list(task.resume))])

    def has_unaddressed_answer(self, checkpoint_ns: str) -> bool:
        """Return whether this run brought an answer that was not taken."""
        from langgraph.types import Interrupt

        if self._task.unaddressed() is not None:
            return True
        return Interrupt.from_ns(None, checkpoint_ns).id in self._task.resume_map


class Executions:
    """Finds the Execution that code runs in, by objects that LangGraph makes for it.

    A scratchpad's `get_null_resume` is made with the task, and lives as long. Its `interrupt_counter` is made anew for
    each retry.
    """

    def __init__(self) -> None:
        self._tasks: WeakKeyDictionary[Any, _Task] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tasks)

    def of(self, scratchpad: Any, resume_map: Mapping[str, Any] | None) -> Execution:
        """Return the execution that a scratchpad belongs to; always a new one without a scratchpad."""
        if scratchpad is None:
            return Execution()
        counter = scratchpad.interrupt_counter
        with self._lock:
            task = self._tasks.get(scratchpad.get_null_resume)
            if task is None:
                task = self._tasks[scratchpad.get_null_resume] = _Task(scratchpad, resume_map)
            if id(counter) not in task.executions:
                task.executions[id(counter)] = (counter, Execution(task))
            return task.executions[id(counter)][1]
