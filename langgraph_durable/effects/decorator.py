"""`@effect`: a function whose body happens once for each call that a graph asks for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_args

from langchain_core.runnables import RunnableConfig

from langgraph_durable._config import require_text
from langgraph_durable._database import run_now
from langgraph_durable.effects._calls import find_place, find_tool_call, legible
from langgraph_durable.effects._prepared import UNNAMED, Prepared, prepare
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
            arguments that returns it. Without it, arguments must be data that can be hashed: iterators, secrets and
            models with excluded fields are refused; with it they are neither compared nor recorded.
        log: The log, for calls outside of a graph.
        name: The effect's name; the function's by default.
        **options: Attributes of EffectPolicy, such as verify= or on_unknown=.

    Raises:
        InvalidConfig: An attribute of the policy, or the name, cannot be used.
        TypeError: It is written without parentheses, or on a generator, or an option is no attribute of EffectPolicy.
        EffectError: At the call: the effect can be neither carried out nor replayed; the kinds say why.
    """
    if policy is not None and not isinstance(policy, EffectPolicy):
        raise TypeError("write @effect() with parentheses: its arguments are the policy's")
    policy = (policy or EffectPolicy()).but(**options)

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator, whose body runs after it returned: make it return what it did"
            )
        known_as = require_text(name or function.__name__, "name")
        guarded = _Guarded(function, policy, key, log, known_as)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awrapper(*args: Any, **kwargs: Any) -> Any:
                runtime = guarded.take_runtime(kwargs)
                if policy.read_only:
                    return await function(*args, **kwargs)
                prepared = guarded.prepare(args, kwargs, runtime, asynchronous=True)

                return await prepared.run(lambda: function(*args, **kwargs))

            awrapper.__effect__ = True  # type: ignore[attr-defined] # see is_effect
            return cast("F", guarded.ask_for_runtime(awrapper))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            runtime = guarded.take_runtime(kwargs)
            if policy.read_only:
                return function(*args, **kwargs)
            prepared = guarded.prepare(args, kwargs, runtime, asynchronous=False)

            async def body() -> Any:
                return function(*args, **kwargs)

            return run_now(prepared.run(body))

        wrapper.__effect__ = True  # type: ignore[attr-defined] # see is_effect
        return cast("F", guarded.ask_for_runtime(wrapper))

    return decorate


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
    ) -> Prepared:
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
        key = UNNAMED if self.key is None else self.key(**arguments) if callable(self.key) else self.key
        if key is not UNNAMED:
            arguments = legible(arguments)
        call = None
        if runtime is not None and place is not None:
            call = find_tool_call(runtime.state, runtime.tool_call_id, self.name, arguments, place)
        return prepare(
            log, self.name, self.policy, arguments, place, call, key=key, asynchronous=asynchronous
        )

    def _is_injected(self, name: str, value: Any) -> bool:
        """Tell whether an argument comes from LangGraph or langchain, not from whoever asked for the call."""
        if name == self.own_runtime:
            return True
        hint = self.signature.parameters[name].annotation
        if name == "config":
            return _is_config(hint, value)
        return _injects(hint) or name in ("run_manager", "callbacks", "self", "cls")


def _is_config(hint: Any, value: Any) -> bool:
    """Tell whether an argument of that name is LangGraph's config: it may be what is to be done, too."""
    if hint is inspect.Parameter.empty:
        return isinstance(value, Mapping) and "configurable" in value
    if isinstance(hint, str):
        return "RunnableConfig" in hint
    return hint is RunnableConfig or RunnableConfig in get_args(hint)


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
