"""Switches that turn off, in this process, one thing that keeps the law."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langgraph_durable._postgres.statement import Statement

_EFFECTS = "langgraph_durable.effects"


@dataclass(frozen=True)
class Switch:
    """What is replaced, and by what."""

    target: str
    """module:attribute, below the package of effects."""
    replacement_of: Callable[[Any], Any]
    """Returns the replacement of what is there now."""

    def find(self) -> tuple[Any, Any]:
        """Return the owner of the target, and the target.

        Raises:
            LookupError: This version has no such thing, so nothing would be switched off.
        """
        module, _, path = self.target.partition(":")
        try:
            owner: Any = importlib.import_module(f"{_EFFECTS}.{module}")
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            return owner, vars(owner)[name]
        except (ImportError, AttributeError, KeyError) as exc:
            raise LookupError(f"{_EFFECTS}.{module} has no {path}, so it cannot be switched off") from exc

    def turn_off(self) -> None:
        """Replace the target, wherever it was imported to."""
        owner, old = self.find()
        new = self.replacement_of(old)
        setattr(owner, self.target.rpartition(":")[2].rpartition(".")[2], new)
        if callable(old):
            _replace_imported(old, new)


def _replace_imported(old: Any, new: Any) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_EFFECTS):
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)


# --- replacements ---


def nothing(_: Any) -> Any:
    return lambda *args, **kwargs: None


def async_nothing(_: Any) -> Any:
    async def wait_for_nothing(*args: Any, **kwargs: Any) -> None:
        """Return at once."""

    return wait_for_nothing


def always(value: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *args, **kwargs: value


def changed(old: str, new: str) -> Callable[[Statement], Statement]:
    """Change the text of a statement."""

    def change(statement: Statement) -> Statement:
        if old not in statement.text:
            raise LookupError(f"the statement has no {old!r}, so it cannot be switched off")
        return Statement(statement.text.replace(old, new))

    return change


def without(relation: str) -> Callable[[Any], Any]:
    """Find no candidates of a relation."""
    from langgraph_durable.effects._storage.rows import Relation

    if relation not in Relation.__members__:
        raise LookupError(f"there is no relation {relation}")

    def restored(find_candidates: Any) -> Any:
        async def find(*args: Any, **kwargs: Any) -> Any:
            found = await find_candidates(*args, **kwargs)
            return [related for related in found if related.relation.name != relation]

        return find

    return restored


def without_attempts(place_params: Any) -> Any:
    """Take every nested graph for one of its node's first attempt."""

    def params(*args: Any, **kwargs: Any) -> Any:
        given = place_params(*args, **kwargs)
        return {**given, "attempts": json.dumps(type(json.loads(given["attempts"]))())}

    return params


def fails_when_refused(state_after: Any) -> Any:
    def state(call: Any, attempt: Any, exc: BaseException, **options: Any) -> Any:
        if isinstance(exc, ConnectionRefusedError):
            return "failed", True
        return state_after(call, attempt, exc, **options)

    return state


def forgetful(of: Any) -> Any:
    """Forget other tasks' counters whenever a task asks for its own."""

    def find(executions: Any, scratchpad: Any, resume_map: Any) -> Any:
        mine = getattr(scratchpad, "get_null_resume", None)
        for key in [key for key in executions._tasks if key is not mine]:
            executions._tasks.pop(key, None)
        return of(executions, scratchpad, resume_map)

    return find


def by_function_name(_: Any) -> Any:
    return lambda decorated, *args: decorated.name or decorated._own_name


def counting_calls_without_message_id(identify: Any) -> Any:
    def identified(scope: Any, tool: Any, input_hash: Any, place: Any, call: Any) -> Any:
        if call is not None and call.message_id is None:
            call = None
        return identify(scope, tool, input_hash, place, call)

    return identified
