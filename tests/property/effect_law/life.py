"""One process's part of a history: it acts until it is killed or the history is over, and reports what it saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.types import Command, StateUpdate

from langgraph_durable import DurableSaver, Happened, NotHappened
from tests.property.effect_law import oracle
from tests.property.effect_law.graphs import build
from tests.property.effect_law.model import ask
from tests.property.effect_law.programs import Action, Case, Fan, Flow, Loop, Talk
from tests.property.effect_law.vendor import Vendor
from tests.property.effect_law.world import World

_ROUNDS = 10
"""How often an unfinished thread is run again at the end."""
_QUESTIONS = 12
_STEPS = 60
_PAUSE = 0.1


class Life:
    """The process's saver and graph."""

    def __init__(self, case: Case, directory: Path, conninfo: str, threads: list[str]) -> None:
        self.case = case
        self.world = World(case, Vendor(directory, case.policy.honours_keys))
        self.world.watch_database()
        self._threads = threads
        self._reports = os.open(directory / "reports", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.saver = DurableSaver.from_conn_string(conninfo, max_size=4).__enter__()
        self.graph = build(self.world, self.saver)

    def report(self, what: str, thread: str, **details: Any) -> None:
        line = json.dumps({"what": what, "thread": thread, **details}) + "\n"
        os.write(self._reports, line.encode())

    def live(self, start: int) -> None:
        """Do the actions from a number on, and then finish."""
        for number in range(start, len(self.case.actions)):
            action = self.case.actions[number]
            self.world.arm(action.fault)
            self._for_each_thread(lambda actor, a=action, n=number: actor.act(n, a))  # type: ignore[misc]
        self.world.arm(None)
        self._for_each_thread(lambda actor: actor.finish())

    def _for_each_thread(self, do: Callable[[Actor], None]) -> None:
        actors = [Actor(self, thread) for thread in self._threads]
        if len(actors) == 1:
            return do(actors[0])
        failures: list[str] = []

        def run(actor: Actor) -> None:
            try:
                do(actor)
            except Exception:
                failures.append(traceback.format_exc())

        running = [threading.Thread(target=run, args=(actor,)) for actor in actors]
        for one in running:
            one.start()
        for one in running:
            one.join()
        if failures:
            raise RuntimeError(failures[0])
        return None


class Actor:
    """The user of one thread of the graph."""

    def __init__(self, life: Life, thread: str) -> None:
        self._life = life
        self._case = life.case
        self._thread = thread
        # A model that never gets what it asked for would ask for ever.
        self._config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": _STEPS}
        self._numbers = itertools.count()

    # --- the graph's methods, sync or async ---

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        graph = self._life.graph
        if not self._case.asynchronous:
            return getattr(graph, method)(*args, **kwargs)
        loop = _loop()
        return loop.run_until_complete(getattr(graph, f"a{method}")(*args, **kwargs))

    def _state(self) -> Any:
        return self._do("get_state", self._config)

    def _delivered(self, state: Any) -> list[str]:
        """Return the results in a state, without those of a step that has not ended, which new input drops."""
        if not state.metadata:
            return []
        return oracle.delivered_texts(self._case, self._do("get_state", state.config).values)

    def _history(self) -> list[Any]:
        if not self._case.asynchronous:
            return list(self._life.graph.get_state_history(self._config))

        async def collect() -> list[Any]:
            return [found async for found in self._life.graph.aget_state_history(self._config)]

        return _loop().run_until_complete(collect())

    # --- actions ---

    def act(self, number: int, action: Action) -> None:
        """Do one action, and report how it ended."""
        state = self._state()
        kind = action.kind
        if kind not in ("input", "again") and not state.metadata:
            kind = "again"  # nothing is stored to go on from
        before = self._report_start(number, kind, action, state)
        try:
            if kind in ("input", "again"):
                self._run(self._input(number, kind), action)
            elif kind == "resume":
                self._run(None, action)
            elif kind in ("update", "bulk"):
                self._update(kind)
                self._run(None, action)
            else:
                self._run(None, action, config=self._earlier(kind, action.back))
            outcome = "ok"
        except Exception as exc:
            outcome = f"{type(exc).__name__}: {exc}"
            self._life.world.arm(None)
        after = self._delivered(self._state())
        self._life.report(
            "after", self._thread, number=number, outcome=outcome[:300], before=before, after=after
        )

    def _report_start(self, number: int, kind: str, action: Action, state: Any) -> list[str]:
        texts = self._delivered(state)
        details: dict[str, Any] = {}
        if kind in ("input", "again"):
            wishes, run = self._last_input(number)
            values = self._do("get_state", state.config).values if state.metadata else None
            wanted = oracle.wanted_by_input(self._case, values, wishes, run)
            details["wanted"] = dict(wanted + oracle.count_delivered(texts))
        finished = _has_ended(state) and not self._missing(state)
        self._life.report("before", self._thread, number=number, finished=finished, texts=texts, **details)
        if kind in ("travel", "fork", "pin"):
            found = self._target(kind, action.back)
            return oracle.delivered_texts(self._case, found.values) if found else texts
        return texts

    def _last_input(self, number: int) -> tuple[tuple[str, ...], int]:
        """Return what the last input up to an action asks for, and its number."""
        last = max(n for n in range(number + 1) if self._case.actions[n].kind == "input")
        return self._case.actions[last].wishes, last

    def _input(self, number: int, kind: str) -> Any:
        wishes, run = self._last_input(number)
        program = self._case.program
        if isinstance(program, (Talk, Fan)):
            return {"messages": [ask(wishes)]}
        if isinstance(program, Loop):
            return {"turn": 0, "began": 1, "ai": []}
        return run if program.functional else {"run": run, "began": 1}

    def _run(self, given: Any, action: Action | None = None, config: Any = None) -> None:
        """Run the graph, and answer its questions."""
        options = {"durability": self._case.durability}
        self._do("invoke", given, config or self._config, **options)
        for _ in range(_QUESTIONS):
            questions = self._state().interrupts
            if not questions or (action is not None and not action.answer):
                return
            answers = {question.id: self._answer(question.value) for question in questions}
            self._do("invoke", Command(resume=answers), self._config, **options)

    def _answer(self, question: Any) -> Any:
        if "effect" not in question:
            return uuid.uuid4().hex[:6]  # a human who is asked again says something else
        record = self._life.saver.effects.get(question["effect"])
        assert record is not None
        answer = {"effect": question["effect"], "attempts": question["attempts"]}
        if "replay" in question["decisions"]:  # it was asked for once, and its result never came
            return {**answer, "decision": "replay"}
        sale = self._life.world.vendor.find(record.idempotency_key)
        if sale is None:
            return {**answer, "decision": "retry"}
        return {**answer, "decision": "happened", "result": sale.text}

    # --- changes of the history ---

    def _update(self, kind: str, config: Any = None) -> Any:
        program = self._case.program
        values: Any = {"messages": []} if isinstance(program, (Talk, Fan)) else {"out": []}
        if isinstance(program, Flow) and program.functional:
            return None  # has no channels to update
        if config is None and (self._state().metadata or {}).get("source") == "input":
            return None  # the update would take the place of the input, even if that was prepared
        try:
            if kind == "bulk":
                return self._do(
                    "bulk_update_state", self._config, [[StateUpdate(values)], [StateUpdate(values)]]
                )
            return self._do("update_state", config or self._config, values)
        except Exception as exc:
            if type(exc).__name__ != "InvalidUpdateError":  # it is not clear as which node
                raise
            return None

    def _target(self, kind: str, back: int) -> Any:
        """Return the checkpoint that a run goes back to."""
        functional = isinstance(self._case.program, Flow) and self._case.program.functional
        history = self._history()
        if kind == "pin":
            return history[0]
        found = [
            state
            for state in history[1:]
            if ((state.metadata or {}).get("source") == "input") == functional and state.next
        ]
        return found[back % len(found)] if found else None

    def _earlier(self, kind: str, back: int) -> Any:
        target = self._target(kind, back)
        if target is None:
            return None
        config = (kind == "fork" and self._update(kind, target.config)) or target.config
        return {**config, "recursion_limit": _STEPS}

    # --- the end ---

    def finish(self) -> None:
        """Decide truthfully what needs a decision, and run the thread until nothing is left to do."""
        problem = ""
        for _ in range(_ROUNDS):
            state = self._state()
            if _has_ended(state):
                if not self._missing(state) or not isinstance(self._case.program, Talk):
                    break
                given: Any = {"messages": [ask(())]}  # the model gave up
            else:
                given = None if state.metadata else self._first_input()
            self._resolve()
            try:
                self._run(given)
                problem = ""
            except Exception as exc:
                problem = f"{type(exc).__name__}: {exc}"
                time.sleep(_PAUSE)
        state = self._state()
        self._life.report(
            "end",
            self._thread,
            finished=_has_ended(state),
            problem=problem[:400],
            texts=self._delivered(state),
            missing=dict(self._missing(state)) if _has_ended(state) else {},
            wrong=oracle.wrong_answers(self._case, state.values),
        )

    def _first_input(self) -> Any:
        wishes, run = self._last_input(0)
        wanted = oracle.wanted_by_input(self._case, None, wishes, run)
        self._life.report("before", self._thread, number=0, finished=False, texts=[], wanted=dict(wanted))
        return self._input(0, "input")

    def _missing(self, state: Any) -> Counter[str]:
        missing = oracle.missing_at_end(self._case, state.values)
        return oracle.once_per_thread(missing) if self._case.policy.scope == "thread" else missing

    def _resolve(self) -> None:
        effects, vendor = self._life.saver.effects, self._life.world.vendor
        for record in effects.pending(self._thread):
            sale = vendor.find(record.idempotency_key)
            finding = Happened(sale.text) if sale else NotHappened()
            try:
                effects.resolve(record.effect_id, finding)
            except Exception as exc:
                self._life.report("note", self._thread, problem=f"{type(exc).__name__}: {exc}"[:300])


def _has_ended(state: Any) -> bool:
    """Return whether a thread has nothing left to run.

    `next` leaves out tasks that have their results, also before their step has ended.
    """
    return bool(state.metadata) and not state.tasks


_loops = threading.local()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this OS thread."""
    if not hasattr(_loops, "loop"):
        _loops.loop = asyncio.new_event_loop()
    return _loops.loop  # type: ignore[no-any-return]
