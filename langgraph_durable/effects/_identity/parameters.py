"""The arguments of a call: which of them LangGraph injects, and which were left out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId
from pydantic import BaseModel

from langgraph_durable.effects._identity.hashing import EMPTY_FACTORIES, drop_unhashable, is_plain, is_same

_NEVER_DATA = ("run_manager", "callbacks", "self", "cls")
"""Parameters whose arguments are not data, whatever their type."""
_EMPTY = inspect.Parameter.empty


class Source(Enum):
    """Where a parameter's argument comes from."""

    CALLER = "the model, or the code that calls"
    VALUE = "LangGraph: a value of the state, which may decide what is done"
    CONTEXT = "LangGraph: the whole state, a store, a runtime"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, without the context that LangGraph injects.

    Attributes:
        recorded: As the body receives them.
        hashed: Without those that equal their parameter's default, so that a call stays the same when a deploy adds an
            optional parameter.
    """

    recorded: dict[str, Any]
    hashed: dict[str, Any]

    def without_unhashable(self) -> Arguments:
        """Return the arguments with placeholders for what cannot be hashed."""
        return Arguments(drop_unhashable(self.recorded), drop_unhashable(self.hashed))


class Parameters:
    """The parameters of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        self._function = function
        self.runtime = self._find_runtime()
        """The parameter in which ToolNode passes its runtime."""

    def _find_runtime(self) -> str | None:
        kind = runtime_type()
        hints = resolved_hints(self._function)
        for name in self.signature.parameters:
            if any(_is_kind(mark, kind) for mark in _marks(hints.get(name))):
                return name
        # ToolNode passes it under this name, whatever the type.
        return "runtime" if kind is not None and "runtime" in self.signature.parameters else None

    @functools.cached_property
    def _sources(self) -> dict[str, Source]:
        return sources_of(resolved_hints(self._function))

    @property
    def has_self(self) -> bool:
        """Whether the function is a method, as far as its first parameter says."""
        return next(iter(self.signature.parameters), None) in ("self", "cls")

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call.

        Raises:
            TypeError: The function cannot be called so.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        recorded = {n: v for n, v in bound.arguments.items() if self._is_input(n, v)}
        return Arguments(recorded, self._given(recorded))

    def is_injected(self, name: str) -> bool:
        """Return whether LangGraph injects an argument."""
        return self._sources.get(name, Source.CALLER) is not Source.CALLER

    def _given(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, value in recorded.items():
            parameter = self.signature.parameters[name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and not value.keys() & recorded.keys():
                given |= value  # as if they were parameters, which a later version may make them
            elif parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                given |= {name: value} if value else {}
            elif parameter.default is _EMPTY or not is_same(value, parameter.default):
                given[name] = value
        return given

    def _is_input(self, name: str, value: Any) -> bool:
        """Return whether an argument may decide what is done."""
        if name in _NEVER_DATA or _is_kind(type(value), runtime_type()):
            return False
        source = self._sources.get(name, Source.CALLER)
        if name == "config" and self.signature.parameters[name].annotation is _EMPTY:
            return not (isinstance(value, Mapping) and "configurable" in value)
        return source is Source.CALLER or (source is Source.VALUE and is_plain(value))


def runtime_type() -> Any:
    """Return the class of the runtimes that ToolNode passes to tools; None without LangGraph."""
    try:
        from langgraph.prebuilt import ToolRuntime
    except ImportError:
        return None
    return ToolRuntime


_hints: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def resolved_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the type hints of a function; those that cannot be resolved as the text they are."""
    plain = plain_function(function)
    if (known := _hints.get(plain)) is not None:
        return known
    try:
        hints = get_type_hints(plain, include_extras=True)
    except Exception:
        given = getattr(plain, "__annotations__", {})
        hints = {name: _resolved(plain, name, hint) for name, hint in given.items()}
    _hints[plain] = hints
    return hints


def plain_function(function: Any) -> Any:
    """Return the function that a partial, a callable object or a bound method runs."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)  # a bound method is made anew each time it is asked for


def _resolved(function: Any, name: str, hint: Any) -> Any:
    def only() -> None: ...

    only.__annotations__ = {name: hint}
    try:
        return get_type_hints(
            only, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True
        )[name]
    except Exception:  # a name that only a type checker knows
        return hint


def sources_of(hints: Mapping[str, Any]) -> dict[str, Source]:
    """Return the parameters whose arguments are injected."""
    found = {name: _source([hint]) for name, hint in hints.items()}
    return {name: source for name, source in found.items() if source is not Source.CALLER}


def _source(hints: Iterable[Any]) -> Source:
    marks = [mark for hint in hints for mark in _marks(hint)]
    by_text = {_source_by_text(mark) for mark in marks if isinstance(mark, str)}
    if Source.CONTEXT in by_text or any(map(_is_context, marks)):
        return Source.CONTEXT
    if Source.VALUE in by_text or any(_is_kind(mark, InjectedToolArg) for mark in marks):
        return Source.VALUE
    return Source.CALLER


def _source_by_text(hint: str) -> Source:
    if any(word in hint for word in ("InjectedState(", "InjectedToolArg")):
        return Source.VALUE
    words = ("InjectedState", "InjectedStore", "InjectedToolCallId", "ToolRuntime", "RunnableConfig")
    return Source.CONTEXT if any(word in hint for word in words) else Source.CALLER


def _marks(hint: Any) -> Iterator[Any]:
    """Yield the types and the annotations that a hint is made of."""
    origin = get_origin(hint)
    if origin is Annotated or origin is Union or origin is UnionType:
        for part in get_args(hint):
            yield from _marks(part)
    else:
        yield origin or hint


def _is_kind(mark: Any, kind: Any) -> bool:
    """Return whether an annotation is a class or an instance of a kind."""
    if kind is None:
        return False
    return isinstance(mark, kind) or (isinstance(mark, type) and issubclass(mark, kind))


def _is_context(mark: Any) -> bool:
    if _is_kind(mark, InjectedToolCallId) or mark is RunnableConfig:
        return True
    try:
        from langgraph.prebuilt import InjectedState, InjectedStore
        from langgraph.runtime import Runtime
        from langgraph.store.base import BaseStore
    except ImportError:
        return False
    if _is_kind(mark, InjectedState):
        return not getattr(mark, "field", None)
    return any(_is_kind(mark, kind) for kind in (InjectedStore, BaseStore, Runtime, runtime_type()))


# --- tools ---


def tool_sources(tool: BaseTool, bodies: Iterable[Callable[..., Any]]) -> dict[str, Source]:
    """Return the parameters of a tool whose arguments are injected."""
    found: dict[str, Source] = {}
    for body in bodies:
        found |= sources_of(resolved_hints(body))
    for name, field in _schema_fields(tool).items():
        if (source := _source([field.annotation, *field.metadata])) is not Source.CALLER:
            found[name] = source
    return found


def tool_defaults(tool: BaseTool) -> dict[str, Any]:
    """Return the defaults of a tool's arguments, as its schema has them."""
    schema: Any = tool.args_schema
    if isinstance(schema, Mapping):
        properties = schema.get("properties", {})
        return {name: p["default"] for name, p in properties.items() if "default" in p}
    defaults: dict[str, Any] = {}
    for name, field in _schema_fields(tool).items():
        if field.default_factory in EMPTY_FACTORIES:
            defaults[name] = field.default_factory()
        elif field.default_factory is None and not field.is_required():
            defaults[name] = field.default
    return defaults


def leave_out(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that do not equal their default."""
    return {n: v for n, v in arguments.items() if n not in defaults or not is_same(v, defaults[n])}


def _schema_fields(tool: BaseTool) -> Mapping[str, Any]:
    schema = tool.args_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_fields
    return {}
