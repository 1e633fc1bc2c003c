"""`@effect`: a function whose body happens once for each call that a graph asks for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from langgraph_durable._database import Database, run_now
from langgraph_durable.effects._calls import (
    Place,
    ToolCall,
    canonical,
    digest,
    find_place,
    find_tool_call,
    key_of,
)
from langgraph_durable.effects._guard import Guard
from langgraph_durable.effects._records import call_of
from langgraph_durable.effects._results import give
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.errors import EffectError

F = TypeVar("F", bound=Callable[..., Any])

_INJECTED = "effect_runtime"
"""The parameter by which ToolNode tells a decorated tool which call it runs for; no model sees it."""


def effect(
    policy: EffectPolicy | None = None,
    *,
    key: str | Callable[..., str] | None = None,
    log: EffectLog | None = None,
    name: str | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """Make a function's body happen once for each call, whatever crashes.

    The saver is found in the running graph. What the body returns is stored, and returned again when a resumed, retried
    or forked run comes to the same call; where a crash left it open whether the body took effect, the policy decides.
    Put it under `@tool`.

    Args:
        policy: What to do; or its attributes, as keywords.
        key: What makes two calls the same effect, instead of the policy's scope: text, or a function of the call's
            arguments that returns it.
        log: The log, for calls outside of a graph.
        name: The effect's name; the function's by default.
        **options: Attributes of EffectPolicy, such as verify= or on_unknown=.

    Raises:
        EffectError: At the call: the effect can be neither carried out nor replayed; the kinds say why.
    """
    if policy is not None and not isinstance(policy, EffectPolicy):
        raise TypeError("write @effect() with parentheses: its arguments are the policy's")
    policy = (policy or EffectPolicy()).but(**options)

    def decorate(function: F) -> F:
        guarded = _Guarded(function, policy, key, log, name or function.__name__)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awrapper(*args: Any, **kwargs: Any) -> Any:
                runtime = guarded.take_runtime(kwargs)
                if policy.read_only:
                    return await function(*args, **kwargs)
                prepared = guarded.prepare(args, kwargs, runtime, asynchronous=True)

                async def body() -> Any:
                    return await function(*args, **kwargs)

                return give(await prepared.log._run(prepared.guard, body), prepared.call)

            return cast("F", guarded.ask_for_runtime(awrapper))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            runtime = guarded.take_runtime(kwargs)
            if policy.read_only:
                return function(*args, **kwargs)
            prepared = guarded.prepare(args, kwargs, runtime, asynchronous=False)

            async def body() -> Any:
                return function(*args, **kwargs)

            return give(run_now(prepared.log._run(prepared.guard, body)), prepared.call)

        return cast("F", guarded.ask_for_runtime(wrapper))

    return decorate


class _Prepared:
    def __init__(self, log: EffectLog, guard: Guard, call: ToolCall | None) -> None:
        self.log = log
        self.guard = guard
        self.call = call


class _Guarded:
    """A decorated function, and what tells its calls apart."""

    def __init__(
        self,
        function: Callable[..., Any],
        policy: EffectPolicy,
        key: str | Callable[..., str] | None,
        log: EffectLog | None,
        name: str,
    ) -> None:
        self.function = function
        self.policy = policy
        self.key = key
        self.log = log
        self.name = name
        self.signature = inspect.signature(function)
        self.runtime_type = _runtime_type()
        self.own_runtime = self._find_own_runtime()

    def _find_own_runtime(self) -> str | None:
        """Return the parameter by which the function itself asks for the runtime."""
        for parameter in self.signature.parameters.values():
            hint = parameter.annotation
            named = hint.split("[")[0] if isinstance(hint, str) else getattr(hint, "__origin__", hint)
            if named == "ToolRuntime" or (self.runtime_type is not None and named is self.runtime_type):
                return parameter.name
        return None

    def ask_for_runtime(self, wrapper: Any) -> Any:
        """Give a wrapper a parameter that ToolNode fills with the call it runs for, unless the function has one."""
        if self.runtime_type is None or self.own_runtime is not None:
            return wrapper
        parameters = list(self.signature.parameters.values())
        asked = inspect.Parameter(
            _INJECTED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=self.runtime_type
        )
        at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        wrapper.__signature__ = self.signature.replace(parameters=[*parameters[:at], asked, *parameters[at:]])
        wrapper.__annotations__ = {**self.function.__annotations__, _INJECTED: self.runtime_type}
        return wrapper

    def take_runtime(self, kwargs: dict[str, Any]) -> Any:
        """Return the runtime that came with a call, if one did."""
        if self.own_runtime is not None:
            return kwargs.get(self.own_runtime)
        return kwargs.pop(_INJECTED, None)

    def prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], runtime: Any, *, asynchronous: bool
    ) -> _Prepared:
        """Find out which effect a call is, and where it is logged."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {n: v for n, v in bound.arguments.items() if not self._is_injected(n, v)}
        place = find_place(getattr(runtime, "config", None))
        log = self.log or (EffectLog.from_saver(place.saver) if place is not None else None)
        if log is None:
            raise EffectError(
                f"{self.name!r} was called outside of a running graph, where nothing tells one call from another: give "
                "@effect(...) a key= and a log=EffectLog.from_saver(saver)"
            )
        call = None
        if self.key is not None:
            text = self.key(**arguments) if callable(self.key) else self.key
            if not isinstance(text, str) or not text:
                raise EffectError(f"the key= of {self.name!r} must give text, got {text!r}")
            key = digest("key", self.name, text)
        elif place is None:
            raise EffectError(
                f"{self.name!r} was called outside of a running graph, where nothing tells one call from another: give "
                "@effect(...) a key="
            )
        else:
            call = self._tool_call(runtime, arguments, place)
            key = key_of(self.policy.scope, self.name, digest(self.name, canonical(arguments)), place, call)
        scope = "key" if self.key is not None else self.policy.scope
        kept = call_of(
            log._saver.serde,
            self.name,
            scope,
            key,
            arguments,
            place,
            message_id=call.message_id if call is not None else None,
            tool_call_id=call.tool_call_id if call is not None else None,
        )
        db: Database = log._saver._adb if asynchronous else log._saver._db
        named = self.key is not None or self.policy.scope in ("thread", "global")
        is_alone = call is None or call.is_alone
        guard = log._guard(db, kept, self.policy, place, named=named, is_alone=is_alone)
        return _Prepared(log, guard, call)

    def _tool_call(self, runtime: Any, arguments: dict[str, Any], place: Place) -> ToolCall | None:
        if runtime is None:
            return None
        return find_tool_call(runtime.state, runtime.tool_call_id, self.name, arguments, place)

    def _is_injected(self, name: str, value: Any) -> bool:
        """Tell whether an argument comes from LangGraph or langchain, not from whoever asked for the call."""
        if name == self.own_runtime:
            return True
        hint = self.signature.parameters[name].annotation
        return _injects(hint) or name in ("config", "run_manager", "callbacks", "self", "cls")


def _injects(hint: Any) -> bool:
    from langchain_core.tools import InjectedToolArg

    if isinstance(hint, str):
        return any(
            word in hint
            for word in ("InjectedState", "InjectedStore", "InjectedToolCallId", "InjectedToolArg")
        )
    marks = (*getattr(hint, "__metadata__", ()), hint)
    return any(
        isinstance(mark, InjectedToolArg) or (isinstance(mark, type) and issubclass(mark, InjectedToolArg))
        for mark in marks
    )


def _runtime_type() -> Any:
    try:
        from langgraph.prebuilt import ToolRuntime
    except ImportError:
        return None
    return ToolRuntime
