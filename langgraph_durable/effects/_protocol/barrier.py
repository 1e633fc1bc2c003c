"""The durability barrier: an effect begins after everything that leads to it is stored.

That is the checkpoints of its graphs, and the pending writes that the call may depend on: the results of tasks that
were called as functions, what a Command brought, and the answers of humans. Without it, a crash would lose what was
asked for, and the code or the model would ask for something else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from langgraph.checkpoint.serde.types import RESUME

from langgraph_durable._checkpoints.known import NULL_TASK_ID, KnownCheckpoints, WritesKey
from langgraph_durable._checkpoints.put import put_writes
from langgraph_durable._postgres.drivers import BlockingDatabase
from langgraph_durable.effects._identity.execution import Execution
from langgraph_durable.effects._identity.location import Place, execution_of, sorted_by_depth
from langgraph_durable.effects._protocol.attempt import EffectCall
from langgraph_durable.effects._protocol.loops import Loop, TaskWrites, find_loops, path_text
from langgraph_durable.effects._storage import store
from langgraph_durable.errors import EffectError

_TIMEOUT = 15.0
_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.25
_QUERY_AFTER = 0.02
"""The longest wait before the database is asked: usually this process is about to put what is waited for."""


def require_free_loop(call: EffectCall) -> None:
    """Refuse a sync effect on the event loop of its graph.

    The loop has yet to store what the effect waits for. Whether it has done so by now is a matter of timing, so such a
    call is always refused.

    Raises:
        EffectError: It is called there.
    """
    place = call.place
    if place is None or call.named or not isinstance(call.db, BlockingDatabase):
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # this thread has no loop, as in a ToolNode, which runs sync tools in threads
        return
    if any(loop.is_async for loop in find_loops(place.call)):
        raise _on_the_loop(call)


def _on_the_loop(call: EffectCall) -> EffectError:
    return EffectError(
        f"the sync effect {call.request.tool!r} was called on the event loop of its graph, which has yet to store the "
        "checkpoint that leads to it. Nothing was run. Make it async, call it by `await asyncio.to_thread(...)`, or "
        "give it a key=",
        see="sync-effect-on-the-event-loop",
    )


async def await_stored(call: EffectCall) -> None:
    """Wait until the checkpoints and writes that lead to a call are stored.

    Round trips: usually none.

    Raises:
        EffectError: They are not, and may never be.
    """
    place = call.place
    if place is None or call.request.outer_id is not None:  # the outer effect has waited
        return
    if call.named:
        await _await_arguments(call, place)
        return
    if place.durability == "exit":
        raise _not_stored(call, 'runs with durability="exit", which stores its checkpoint only at the end')
    loops = find_loops(place.call)
    if loops and not loops[0].has_checkpointer:
        raise _not_stored(call, "runs in a graph that was compiled with checkpointer=False")
    barrier = _Barrier(call, place, loops)
    await barrier.await_checkpoints()
    await barrier.await_writes()


async def _await_arguments(call: EffectCall, place: Place) -> None:
    """Wait for what may have chosen the arguments, if these identify the call in every run, and if it is stored."""
    loops = find_loops(place.call)
    executor = getattr(getattr(place.saver, "effects", None), "executor", None)
    identifies = call.request.scope in ("thread", "global") and executor is not None
    blocks = isinstance(call.db, BlockingDatabase) and any(loop.is_async for loop in loops)
    stores = place.durability != "exit" and all(loop.has_checkpointer for loop in loops)
    if identifies and stores and not blocks:
        await _Barrier(call, place, loops).await_writes()


def _not_stored(call: EffectCall, why: str) -> EffectError:
    return EffectError(
        f"the effect {call.request.tool!r} {why}. A crash would forget that it was requested, so nothing was run. Use "
        'durability "async" or "sync" and a graph with a DurableSaver as its checkpointer, or give the effect a key=',
        see="request-not-stored",
    )


def _known_to(call: EffectCall, place: Place) -> KnownCheckpoints:
    """Return what the saver of the running graph knows to be stored: usually the effect log's own one.

    Raises:
        EffectError: The graph's checkpointer is not a DurableSaver.
    """
    executor = getattr(getattr(place.saver, "effects", None), "executor", None)
    if executor is None:
        raise _not_stored(
            call,
            f"is recorded by log=, but its graph's checkpointer is {type(place.saver).__name__}, which stores "
            "checkpoints elsewhere",
        )
    known: KnownCheckpoints = executor.context.known
    return known


class _Barrier:
    """The wait of one call."""

    def __init__(self, call: EffectCall, place: Place, loops: list[Loop]) -> None:
        self._call = call
        self._place = place
        self._loops = loops
        self._known = _known_to(call, place)
        self._deadline = time.monotonic() + _TIMEOUT
        self._delay = _FIRST_WAIT

    @property
    def _is_slow(self) -> bool:
        return self._delay > _QUERY_AFTER

    async def _wait(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise _not_stored(self._call, f"was requested by {what}, which is not stored")
        await self._call.db.sleep(self._delay)
        self._delay = min(self._delay * 2, _LONGEST_WAIT)

    # --- checkpoints ---

    async def await_checkpoints(self) -> None:
        place, ours = self._place, self._call.context.known
        # A task's namespace names the checkpoint of the enclosing graph again, and that is stored only once.
        graphs = {checkpoint_id: ns for ns, checkpoint_id in reversed(sorted_by_depth(place.checkpoints))}
        for checkpoint_id, ns in graphs.items():
            key = (place.thread_id, ns, checkpoint_id)
            while key not in ours:
                self._require_free_loop(ns)
                is_stored_there = key in self._known
                if (self._is_slow or is_stored_there) and await store.checkpoint_exists(self._call.db, *key):
                    break
                what = f"checkpoint {checkpoint_id!r} of thread {place.thread_id!r} (namespace {ns!r})"
                if is_stored_there:
                    raise _not_stored(
                        self._call, f"is recorded by the log= of another database than that of {what}"
                    )
                await self._wait(what)

    def _require_free_loop(self, ns: str) -> None:
        """Refuse to block the event loop that has yet to put the checkpoint that is waited for."""
        loop = self._known.in_flight.get((self._place.thread_id, ns))
        if loop is None or not isinstance(self._call.db, BlockingDatabase):
            return
        with suppress(RuntimeError):  # no loop runs here
            if asyncio.get_running_loop() is loop:
                raise _on_the_loop(self._call)

    # --- pending writes ---

    async def await_writes(self) -> None:
        self._delay = _FIRST_WAIT
        if not self._loops:  # not reachable: what began before this call is waited for
            while self._known.writes.any_in_flight(self._place.thread_id):
                await self._wait(f"pending writes of thread {self._place.thread_id!r}")
            return
        while missing := next(self._missing(), None):
            if not self._known.writes.is_in_flight(missing.key) and self._is_slow:
                await self._look_after(missing)
            else:
                await self._wait(f"pending writes of task {missing.key.task_id!r}")
        await self._await_answers()

    def _missing(self) -> Iterator[TaskWrites]:
        for loop in self._loops:
            for task in loop.depended_on():
                if loop.has_checkpointer and not self._known.writes.has(task.key, task.channels):
                    yield task

    async def _look_after(self, task: TaskWrites) -> None:
        """See to writes that this process does not put: they may be stored, or wait for one of LangGraph's workers.

        All workers may wait for effects, so the writes of a called task are stored here.
        """
        found = await store.get_write_channels(self._call.db, task.key)
        path = path_text(task.path) if task.path is not None else None
        if not Counter(task.channels) - Counter(found):
            self._known.writes.add(task.key, [(channel, None) for channel in found])
        elif path is not None:
            await self._put(task.key, task.writes, path)
        else:
            await self._wait(f"pending writes of task {task.key.task_id!r}")

    async def _put(self, key: WritesKey, writes: list[tuple[str, Any]], path: str) -> None:
        thread_id, ns, checkpoint_id, task_id = key
        names = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
        serde, known = self._call.serde, self._known.writes
        await put_writes(self._call.db, serde, known, {"configurable": names}, writes, task_id, path)

    # --- answers ---

    async def _await_answers(self) -> None:
        """Wait until the answers are stored that the task used, and the tasks that called it, or store them.

        What a caller was answered may be in the arguments.
        """
        for loop in self._loops:
            for task in loop.tasks_in(self._place.checkpoint_ns):
                own = task.id == self._place.task_id
                execution = self._place.execution if own else execution_of(task.config["configurable"])
                await self._await_answers_to(loop, task, execution)

    async def _await_answers_to(self, loop: Loop, task: Any, execution: Execution) -> None:
        while missing := self._missing_answers(loop, task, execution):
            path = path_text(task.path)
            if all(execution.is_mapped(answer) for answer in missing) and path is not None:
                await self._put(loop.key(task.id), [(RESUME, execution.used_answers())], path)
                return
            given = [loop.key(NULL_TASK_ID) for loop in self._loops]
            is_coming = any(self._known.writes.is_in_flight(key) for key in given)
            if self._is_slow and not is_coming:
                for key in given:
                    if RESUME in await store.get_write_channels(self._call.db, key):
                        return
            await self._wait(f"a human's answer to task {task.id!r}")

    def _missing_answers(self, loop: Loop, task: Any, execution: Execution) -> list[Any]:
        used = execution.used_answers()
        if not used:
            return []
        known = self._known.writes
        own = known.answers(loop.key(task.id))
        given = [answer for loop in self._loops for answer in known.answers(loop.key(NULL_TASK_ID))]
        # Compared by identity and place: equal answers to two questions are two answers.
        same = 0
        while same < min(len(own), len(used)) and own[same] is used[same]:
            same += 1
        return [answer for answer in used[same:] if not any(answer is stored for stored in given)]
