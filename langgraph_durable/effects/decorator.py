"""`@effect`: a function whose body runs at most once for each call that a graph requests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast, get_args, overload

from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langgraph_durable._postgres.database import run_sync
from langgraph_durable._validation import require_text
from langgraph_durable.effects._executor import EffectExecutor, Invocation, mark_as_effect
from langgraph_durable.effects._keys import drop_unhashable
from langgraph_durable.effects._location import find_place, find_tool_call
from langgraph_durable.effects._lookup import log_in
from langgraph_durable.effects._results import mark_plain_result
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import (
    EffectPolicy,
    OnFork,
    OnUnknown,
    PolicyFields,
    Scope,
    Verify,
)
from langgraph_durable.errors import EffectError

F = TypeVar("F", bound=Callable[..., Any])

_INJECTED = "effect_runtime"
"""The parameter by which ToolNode passes the call that a decorated tool runs for; models never see it."""


@overload
def effect(function: F, /) -> F: ...
@overload
def effect(
    *,
    verify: Verify | None = ...,
    on_unknown: OnUnknown = ...,
    idempotent: bool = ...,
    read_only: bool = ...,
    scope: Scope = ...,
    failed_on: type[BaseException] | tuple[type[BaseException], ...] = ...,
    verify_after: timedelta | float = ...,
    idempotency_window: timedelta | float | None = ...,
    lease: timedelta | float = ...,
    wait_timeout: timedelta | float = ...,
    timeout: timedelta | float | None = ...,
    on_fork: OnFork = ...,
    policy: EffectPolicy | None = None,
    key: str | Callable[..., str] | None = None,
    log: EffectLog | None = None,
    name: str | None = None,
) -> Callable[[F], F]: ...
def effect(
    function: F | None = None,
    /,
    *,
    policy: EffectPolicy | None = None,
    key: str | Callable[..., str] | None = None,
    log: EffectLog | None = None,
    name: str | None = None,
    **fields: Unpack[PolicyFields],
) -> F | Callable[[F], F]:
    """Run a function's body at most once for each call, also across crashes.

    Works bare (`@effect`) and with keywords (`@effect(verify=...)`). Put it under `@tool`. The saver is found in the
    running graph. The body's return value is stored, and returned again when a resumed, retried or forked run comes to
    the same call. If a crash left it open whether the body took effect, the policy decides.

    Args:
        function: The function, sync or async, if used bare.
        policy: The policy; keywords that are fields of EffectPolicy, such as `verify=` or `on_unknown=`, override it.
        key: What identifies the call, instead of the policy's scope: text, or a function of the call's arguments that
            returns it. Without a key, arguments must be plain data, because they are hashed: iterators, secrets and
            models with excluded fields are refused. With a key, those are neither compared nor recorded.
        log: The effect log, for calls outside a graph: `saver.effects`.
        name: The effect's name; the function's by default.
        **fields: Fields of EffectPolicy.

    Raises:
        InvalidConfigError: A field of the policy, or the name, cannot be used.
        TypeError: It decorates something other than a function, or a generator.
        EffectError: At the call: the effect can be neither carried out nor replayed; the subclasses say why.
    """
    policy = (policy or EffectPolicy()).replace(**fields)

    def decorate(function: F) -> F:
        _require_function(function)
        known_as = name or getattr(function, "__name__", None)
        if known_as is None:
            raise TypeError(f"@effect needs a name= for {function!r:.100}, which has no __name__")
        called = _EffectFunction(function, policy, key, log, require_text(known_as, "name"))
        return cast("F", called.wrap())

    return decorate if function is None else decorate(function)


def _require_function(function: Any) -> None:
    if isinstance(function, EffectPolicy):
        raise TypeError("@effect takes its policy as a keyword: write @effect(policy=...)")
    if not callable(function):
        raise TypeError(
            f"@effect decorates functions, got {type(function).__name__}. Put it under @tool, next to the function"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__name__} is a generator, whose body runs after the call returned. Return the result instead"
        )


class _EffectFunction:
    """A decorated function, and what identifies its calls."""

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
        """Return the parameter in which the function itself takes the runtime."""
        for parameter in self.signature.parameters.values():
            hint = parameter.annotation
            named = hint.split("[")[0] if isinstance(hint, str) else getattr(hint, "__origin__", hint)
            if named == "ToolRuntime" or (self.runtime_type is not None and named is self.runtime_type):
                return parameter.name
        return None

    def wrap(self) -> Callable[..., Any]:
        """Return the function that replaces the decorated one."""
        wrapper = self._wrap_async() if inspect.iscoroutinefunction(self.function) else self._wrap_sync()
        mark_as_effect(wrapper)
        self._request_runtime(wrapper)
        return wrapper

    def _wrap_async(self) -> Callable[..., Any]:
        function = self.function

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            runtime = self._take_runtime(kwargs)
            if self.policy.read_only:
                return await function(*args, **kwargs)
            executor, invocation = self._invocation(args, kwargs, runtime)
            value, attempt = await executor.run_invocation(
                invocation, lambda: function(*args, **kwargs), asynchronous=True
            )
            return mark_plain_result(value, attempt, runtime, wrapper)

        return wrapper

    def _wrap_sync(self) -> Callable[..., Any]:
        function = self.function

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            runtime = self._take_runtime(kwargs)
            if self.policy.read_only:
                return function(*args, **kwargs)
            executor, invocation = self._invocation(args, kwargs, runtime)

            async def body() -> Any:
                return function(*args, **kwargs)

            value, attempt = run_sync(executor.run_invocation(invocation, body, asynchronous=False))
            return mark_plain_result(value, attempt, runtime, wrapper)

        return wrapper

    def _request_runtime(self, wrapper: Any) -> None:
        """Add a parameter that ToolNode fills with the runtime, unless the function has one."""
        if self.runtime_type is None or self.own_runtime is not None:
            return
        parameters = list(self.signature.parameters.values())
        injected = inspect.Parameter(
            _INJECTED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=self.runtime_type
        )
        at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        wrapper.__signature__ = self.signature.replace(
            parameters=[*parameters[:at], injected, *parameters[at:]]
        )
        wrapper.__annotations__ = {**self.function.__annotations__, _INJECTED: self.runtime_type}

    def _take_runtime(self, kwargs: dict[str, Any]) -> Any:
        if self.own_runtime is not None:
            return kwargs.get(self.own_runtime)
        return kwargs.pop(_INJECTED, None)

    def _invocation(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], runtime: Any
    ) -> tuple[EffectExecutor, Invocation]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {n: v for n, v in bound.arguments.items() if not self._is_injected(n, v)}
        place = find_place(getattr(runtime, "config", None))
        log = self.log or (log_in(place.saver) if place is not None else None)
        if log is None:
            raise EffectError(
                f"{self.name!r} was called outside a running graph, so nothing identifies the call. Give @effect a "
                "key= and log=saver.effects"
            )
        key = self._key_for(arguments)
        if key is not None:
            arguments = drop_unhashable(arguments)
        tool_call = None
        if runtime is not None and place is not None:
            tool_call = find_tool_call(runtime.state, runtime.tool_call_id, self.name, arguments, place)
        return log.executor, Invocation(self.name, self.policy, arguments, place, tool_call, key)

    def _key_for(self, arguments: Mapping[str, Any]) -> str | None:
        if self.key is None:
            return None
        key: Any = self.key(**arguments) if callable(self.key) else self.key
        if not isinstance(key, str) or not key:
            raise EffectError(
                f"the key= of {self.name!r} must be or return a non-empty str, got {key!r:.100}"
            )
        return key

    def _is_injected(self, name: str, value: Any) -> bool:
        """Return whether an argument comes from LangGraph or langchain, not from the caller."""
        if name == self.own_runtime:
            return True
        hint = self.signature.parameters[name].annotation
        if name == "config":
            return _is_config(hint, value)
        return _is_injected_by(hint) or name in ("run_manager", "callbacks", "self", "cls")


def _is_config(hint: Any, value: Any) -> bool:
    """Return whether an argument named `config` is LangGraph's config, and not the tool's input."""
    if hint is inspect.Parameter.empty:
        return isinstance(value, Mapping) and "configurable" in value
    if isinstance(hint, str):
        return "RunnableConfig" in hint
    return hint is RunnableConfig or RunnableConfig in get_args(hint)


def _is_injected_by(hint: Any) -> bool:
    """Return whether an annotation has langchain inject the argument."""
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
