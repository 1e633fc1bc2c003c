"""Faults that the law must find: each is restored by switching off what mends it.

A fault is only listed as possible if this version has what is switched off. `concerns` leaves out programs that cannot
show it, to save time: the count of programs in what is printed includes them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.property.effect_law.programs import Case, Flow, Talk

_EFFECTS = "langgraph_durable.effects"

Way = tuple[str, Callable[[Any], Any]]
"""What is replaced (module:attribute, below the package of effects), and a function from it to its replacement."""


@dataclass(frozen=True)
class RestoredFault:
    """A fault, and how to restore it in this process: the first way whose target this version has."""

    name: str
    what: str
    """What goes wrong then."""
    ways: tuple[Way, ...]
    concerns: Callable[[Case], bool] = lambda case: True

    def _find(self) -> tuple[Any, str, Callable[[Any], Any]] | None:
        for target, replacement in self.ways:
            module, _, path = target.partition(":")
            try:
                owner: Any = importlib.import_module(f"{_EFFECTS}.{module}")
                *parents, name = path.split(".")
                for parent in parents:
                    owner = getattr(owner, parent)
            except (ImportError, AttributeError):
                continue
            if name in vars(owner):
                return owner, name, replacement
        return None

    def is_possible(self) -> bool:
        return self._find() is not None

    def restore(self) -> None:
        """Put the fault back into this process, wherever its target was imported to."""
        found = self._find()
        assert found is not None
        owner, name, replacement = found
        old = vars(owner)[name]
        new = replacement(old)
        setattr(owner, name, new)
        if callable(old):
            _replace_imported(old, new)


def _replace_imported(old: Any, new: Any) -> None:
    import sys

    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_EFFECTS):
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)


# --- which cases can show a fault ---


def _asks_after(case: Case) -> bool:
    return isinstance(case.program, Talk) and case.program.ask == "after"


def _chooses(case: Case) -> bool:
    return isinstance(case.program, Flow) and (case.program.ask or case.program.decide)


def _has_inner_effects(case: Case) -> bool:
    if isinstance(case.program, Flow):
        calls = [call for nodes in case.program.steps for node in nodes for call in node.calls]
    else:
        calls = [wish for action in case.actions for wish in action.wishes]
    return isinstance(case.program, (Flow, Talk)) and sum(call.startswith("order") for call in calls) > 1


def _has_argument(kind: str) -> Callable[[Case], bool]:
    return lambda case: isinstance(case.program, Flow) and case.program.argument == kind


def _talks(case: Case, **fields: Any) -> bool:
    return isinstance(case.program, Talk) and all(getattr(case.program, n) == v for n, v in fields.items())


def _is_refused(case: Case) -> bool:
    return any(action.fault is not None and action.fault.kind == "refuse" for action in case.actions)


# --- replacements ---


def _nothing(_: Any) -> Any:
    return lambda *args, **kwargs: None


def _async_nothing(_: Any) -> Any:
    async def nothing(*args: Any, **kwargs: Any) -> None:
        """Wait for nothing."""

    return nothing


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *args, **kwargs: value


def _fails_when_refused(state_after: Any) -> Any:
    def changed(call: Any, attempt: Any, exc: BaseException, **options: Any) -> Any:
        if isinstance(exc, ConnectionRefusedError):
            return "failed", True
        return state_after(call, attempt, exc, **options)

    return changed


def _without(relation: str) -> Callable[[Any], Any]:
    def restored(find_candidates: Any) -> Any:
        async def find(*args: Any, **kwargs: Any) -> Any:
            found = await find_candidates(*args, **kwargs)
            return [related for related in found if related.relation.name != relation]

        return find

    return restored


def _without_attempts(place_params: Any) -> Any:
    def params(*args: Any, **kwargs: Any) -> Any:
        given = place_params(*args, **kwargs)
        return {**given, "attempts": json.dumps(type(json.loads(given["attempts"]))())}

    return params


def _forgetful(of: Any) -> Any:
    """Forget other tasks' counters whenever a task asks for its own."""

    def changed(executions: Any, scratchpad: Any, resume_map: Any) -> Any:
        mine = getattr(scratchpad, "get_null_resume", None)
        for key in [key for key in executions._tasks if key is not mine]:
            executions._tasks.pop(key, None)
        return of(executions, scratchpad, resume_map)

    return changed


def _without_name(find_tool_call: Any) -> Any:
    def changed(*args: Any, **kwargs: Any) -> Any:
        call = find_tool_call(*args, **kwargs)
        return call and replace(call, name=None)

    return changed


def _counting_calls_without_message_id(identify: Any) -> Any:
    def changed(scope: Any, tool: Any, input_hash: Any, place: Any, call: Any) -> Any:
        if call is not None and call.message_id is None:
            call = None
        return identify(scope, tool, input_hash, place, call)

    return changed


FAULTS = (
    RestoredFault(
        "abandoned_steps",
        "what a step carried out before it was abandoned is forgotten, and a new message has it repeated",
        (("_lineage:find_candidates", _without("UNDELIVERED")),),
    ),
    RestoredFault(
        "inner_counter",
        "effects inside effects are counted in their task, so a replayed outer effect shifts the next ones",
        (("_identity:_outer_of", _always(None)),),
        _has_inner_effects,
    ),
    RestoredFault(
        "plain_forks",
        "a fork repeats what plain nodes and tasks did",
        (("_lineage:find_candidates", _without("FORK")),),
    ),
    RestoredFault(
        "retried_graphs",
        "a retried node that is or calls a graph repeats what its first attempt paid",
        (("_lineage:_place_params", _without_attempts),),
        lambda case: _talks(case, retry="outer"),
    ),
    RestoredFault(
        "suspended_repeats",
        "a body that sent its request and then waited for a human runs again, and verify is not asked",
        (("_attempt:EffectCall.resumes", lambda _: property(lambda call: True)),),
        _asks_after,
    ),
    RestoredFault(
        "refused_is_failed",
        "a refused connection counts as a proof that nothing happened, although verify could be asked",
        (("_run:_state_after", _fails_when_refused),),
        _is_refused,
    ),
    RestoredFault(
        "pending_writes",
        "an effect begins before what chose its arguments is stored",
        (("_barrier:_Barrier.await_writes", _async_nothing),),
        _chooses,
    ),
    RestoredFault(
        "transient_messages",
        "a message that no checkpoint has identifies its calls",
        (("_identity:_is_stored", _always(True)),),
        lambda case: _talks(case, shape="one node"),
    ),
    RestoredFault(
        "one_message",
        "a message's id identifies its calls, however often it is carried out",
        (("_lineage:needs_relation", _always(False)),),
        lambda case: not isinstance(case.program, Talk),
    ),
    RestoredFault(
        "bounded_counters",
        "the counters of tasks live in a cache that drops them",
        (("_execution:Executions.of", _forgetful), ("_location:_Executions._max_size", lambda _: 1)),
        lambda case: isinstance(case.program, Flow),
    ),
    RestoredFault(
        "function_names",
        "tools whose functions have one name are one effect",
        (("_identity:find_tool_call", _without_name),),
        lambda case: _talks(case, same_name=True),
    ),
    RestoredFault(
        "hidden_arguments",
        "arguments that differ are hashed alike",
        (("_keys:_require_transparent", _nothing),),
        _has_argument("secret"),
    ),
    RestoredFault(
        "consumed_iterators",
        "hashing an iterator leaves nothing of it for the body",
        (("_keys:_require_transparent", _nothing),),
        _has_argument("iterator"),
    ),
    RestoredFault(
        "messages_without_ids",
        "calls of a message without an id are counted, so that each retry within the task is another call",
        (("_identity:identify", _counting_calls_without_message_id),),
        lambda case: _talks(case, ids=False, retry="call"),
    ),
)
