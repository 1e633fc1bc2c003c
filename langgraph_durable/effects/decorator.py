"""`@effect`: a function whose body runs at most once for each call that a graph requests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar, cast, overload

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, InjectedToolArg
from pydantic import PlainSerializer
from typing_extensions import Unpack

from langgraph_durable._postgres.database import run_sync
from langgraph_durable._validation import require_text
from langgraph_durable.effects._identity.location import ToolCall, find_place
from langgraph_durable.effects._identity.parameters import Parameters, plain_function, runtime_type
from langgraph_durable.effects._lookup import log_in
from langgraph_durable.effects._node_tools import node_tool, run_as_tool
from langgraph_durable.effects._protocol.executor import EffectExecutor, Invocation, mark_as_effect
from langgraph_durable.effects._protocol.keys import find_tool_call
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import (
    EffectPolicy,
    OnFork,
    OnUndelivered,
    OnUnknown,
    PolicyFields,
    Scope,
    Verify,
)
from langgraph_durable.errors import EffectError, InvalidConfigError

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
    on_undelivered: OnUndelivered = ...,
    duplicate_window: timedelta | float | None = ...,
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
        name: The effect's name in plain code; the function's by default. In a tool call that its message identifies,
            the tool's name in the message is used.
        **fields: Fields of EffectPolicy.

    Raises:
        InvalidConfigError: A field of the policy, or the name, cannot be used.
        TypeError: It decorates something other than a function, or a generator.
        EffectError: At the call: the effect can be neither carried out nor replayed; the subclasses say why.
    """
    policy = (policy or EffectPolicy()).replace(**fields)

    def decorate(function: F) -> F:
        _require_function(function)
        if name is None and getattr(function, "__name__", None) is None:
            raise TypeError(f"@effect needs a name= for {function!r:.100}, which has no __name__")
        given = require_text(name, "name") if name is not None else None
        return cast("F", _EffectFunction(function, policy, key, log, given).wrap())

    return decorate if function is None else decorate(function)


def _require_function(function: Any) -> None:
    if isinstance(function, EffectPolicy):
        raise TypeError("@effect takes its policy as a keyword: write @effect(policy=...)")
    if isinstance(function, Runnable) or not callable(function):
        raise TypeError(
            f"@effect decorates functions, got {type(function).__name__}. Put it under @tool, next to the function"
        )
    if isinstance(function, type):
        raise TypeError(
            f"@effect decorates functions, got the class {function.__name__}. Decorate its method"
        )
    called = plain_function(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"{called.__name__} is a generator, whose body runs after the call returned. Return the result instead"
        )


class _EffectFunction:
    """A decorated function, and what identifies its calls."""

    def __init__(
        self,
        function: Callable[..., Any],
        policy: EffectPolicy,
        key: str | Callable[..., str] | None,
        log: EffectLog | None,
        name: str | None,
    ) -> None:
        self.function = function
        self.policy = policy
        self.key = key
        self.key_takes = _names_taken_by(key) if callable(key) else ()
        self.log = log
        self.name = name
        self.parameters = Parameters(function)
        if self.parameters.has_self and key is None and policy.scope != "call":
            raise InvalidConfigError(
                f"{self._own_name!r} is a method, and scope={policy.scope!r} identifies its calls by their arguments, "
                "which would be the same for all objects. Give @effect a key="
            )

    @property
    def _own_name(self) -> str | None:
        return getattr(self.function, "__name__", None)

    def wrap(self) -> Callable[..., Any]:
        """Return the function that replaces the decorated one."""
        is_async = inspect.iscoroutinefunction(plain_function(self.function))
        wrapper = self._wrap_async() if is_async else self._wrap_sync()
        if self._own_name is None and self.name is not None:
            wrapper.__name__ = self.name
        mark_as_effect(wrapper, self.name or self._own_name or "", self.policy)
        self._request_runtime(wrapper)
        self.wrapper = wrapper
        return wrapper

    def _wrap_async(self) -> Callable[..., Any]:
        function = self.function

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            runtime = self._take_runtime(kwargs)
            if self.policy.read_only:
                return await function(*args, **kwargs)
            executor, invocation = self._invocation(args, kwargs, runtime)
            value, _ = await run_as_tool(
                executor,
                invocation,
                lambda: function(*args, **kwargs),
                lambda: node_tool(runtime, wrapper),
                asynchronous=True,
            )
            return value

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

            value, _ = run_sync(
                run_as_tool(
                    executor, invocation, body, lambda: node_tool(runtime, wrapper), asynchronous=False
                )
            )
            return value

        return wrapper

    def _request_runtime(self, wrapper: Any) -> None:
        """Add a parameter that ToolNode fills with the runtime, unless the function has one."""
        kind = runtime_type()
        if kind is None or self.parameters.runtime is not None:
            return
        # Annotated, because pydantic would validate and dump a bare ToolRuntime, with the whole state, at each call.
        hint = Annotated[Any, kind, InjectedToolArg, PlainSerializer(_serialize_nothing)]
        signature = self.parameters.signature
        parameters = list(signature.parameters.values())
        injected = inspect.Parameter(_INJECTED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        wrapper.__signature__ = signature.replace(parameters=[*parameters[:at], injected, *parameters[at:]])
        annotations = getattr(plain_function(self.function), "__annotations__", {})
        wrapper.__annotations__ = {**annotations, _INJECTED: hint}

    def _take_runtime(self, kwargs: dict[str, Any]) -> Any:
        """Return the runtime that ToolNode passes, and take it away from a function that does not ask for it."""
        own, kind = self.parameters.runtime, runtime_type()
        runtime = kwargs.pop(_INJECTED, None) if own is None else kwargs.get(own)
        return runtime if kind is not None and isinstance(runtime, kind) else None

    def _invocation(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], runtime: Any
    ) -> tuple[EffectExecutor, Invocation]:
        arguments = self.parameters.arguments(args, kwargs)
        place = find_place(getattr(runtime, "config", None))
        log = self.log or (log_in(place.saver) if place is not None else None)
        if log is None:
            raise EffectError(
                f"{self.name or self._own_name!r} was called outside a running graph, so nothing identifies the call. "
                "Give @effect a key= and log=saver.effects"
            )
        key = self._key_for(arguments.recorded)
        if key is not None:
            arguments = arguments.without_unhashable()
        owner = args[0] if args and isinstance(args[0], BaseTool) else None
        tool_call = None
        if runtime is not None and place is not None:
            tool_call = find_tool_call(
                runtime.state,
                runtime.tool_call_id,
                lambda: self._tool_names(runtime, owner),
                arguments,
                place,
            )
        name = self._name_for(tool_call, runtime, owner)
        return log.executor, Invocation(name, self.policy, arguments, place, tool_call, key)

    def _name_for(self, call: ToolCall | None, runtime: Any, owner: BaseTool | None) -> str:
        """Return the name of a call: the model's, if its message identifies the call.

        Raises:
            EffectError: Nothing but the method of a tool class names the call, and each tool class has one.
        """
        if self.name is not None and (call is None or self.key is not None or self.policy.scope != "call"):
            return self.name
        if call is not None and call.name is not None:
            return call.name
        if self.name is not None:
            return self.name
        if owner is not None:
            return owner.name
        names = self._tool_names(runtime, owner) if runtime is not None else ()
        if len(names) == 1:
            return next(iter(names))
        if self._own_name is None or self._own_name in ("_run", "_arun"):
            raise EffectError(
                f"@effect needs a name= for the method {self._own_name}: it was called outside a tool call, and each "
                'tool class has a method of that name. Write @effect(name="...")'
            )
        return self._own_name

    def _tool_names(self, runtime: Any, owner: BaseTool | None) -> Collection[str]:
        """Return the names of the tools that run this function, or the function's if they are not known."""
        if owner is not None:
            return {owner.name}
        tools = getattr(runtime, "tools", ())
        return {tool.name for tool in tools if self._runs_in(tool)} or {self.name or self._own_name or ""}

    def _runs_in(self, tool: Any) -> bool:
        bodies = [getattr(tool, name, None) for name in ("func", "coroutine")]
        return any(self.wrapper in _layers(body) for body in bodies)

    def _key_for(self, arguments: Mapping[str, Any]) -> str | None:
        if self.key is None:
            return None
        key: Any = self.key
        if callable(key):
            takes = self.key_takes
            # Injected values are arguments as well, but not each function that returns a key wants them.
            key = key(
                **{n: v for n, v in arguments.items() if n in takes or not self.parameters.is_injected(n)}
            )
        if not isinstance(key, str) or not key:
            raise EffectError(
                f"the key= of {self.name or self._own_name!r} must be or return a non-empty str, got {key!r:.100}"
            )
        return key


def _serialize_nothing(_: Any) -> None:
    return None


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function, and the functions that it wraps."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _names_taken_by(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have none
        return ()
