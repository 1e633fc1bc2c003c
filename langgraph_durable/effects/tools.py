"""Makes the bodies of tools without @effect effects, as ToolNode runs them.

What is guarded is the tool's body; docs/design/effect-protocol.md says why.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, Tool

from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._identity.hashing import is_plain
from langgraph_durable.effects._identity.location import find_place
from langgraph_durable.effects._identity.parameters import (
    Arguments,
    Source,
    leave_out,
    tool_defaults,
    tool_sources,
)
from langgraph_durable.effects._node_tools import NodeTool, run_as_tool
from langgraph_durable.effects._protocol.attempt import Attempt
from langgraph_durable.effects._protocol.executor import EffectExecutor, Invocation, is_effect
from langgraph_durable.effects._protocol.keys import find_tool_call
from langgraph_durable.effects._protocol.results import mark
from langgraph_durable.effects.policy import IDEMPOTENT, READ_ONLY, EffectPolicy
from langgraph_durable.errors import EffectError, InvalidConfigError

_DEFAULT = EffectPolicy()


class HasExecutor(Protocol):
    """An EffectLog."""

    executor: EffectExecutor


class ToolWrapper:
    """Makes the bodies of a ToolNode's tools effects: pass its two methods to ToolNode."""

    def __init__(
        self,
        log: HasExecutor,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
    ) -> None:
        """Create a wrapper.

        Args:
            log: The effect log: `saver.effects`.
            policies: Policies by the tool's name.
            default: The policy of the other tools.
            trust_hints: Whether a tool's own hints (MCP's readOnlyHint and idempotentHint, in its metadata) may make
                `default` laxer. The tool's server wrote them, so without this they can only make it stricter.

        Raises:
            InvalidConfigError: `log` is not an effect log, or a policy is not an EffectPolicy.
        """
        executor = getattr(log, "executor", None)
        if not isinstance(executor, EffectExecutor):
            raise InvalidConfigError(f"log must be an effect log, got {log!r:.100}. Pass saver.effects")
        for name, policy in (policies or {}).items():
            if not isinstance(policy, EffectPolicy):
                raise InvalidConfigError(
                    f"the policy of {name!r} must be an EffectPolicy, got {policy!r:.100}"
                )
        self._executor = executor
        self._policies = dict(policies or {})
        self._default = default
        self._trust_hints = trust_hints
        self._are_names_checked = not self._policies

    def policy_for(self, tool: BaseTool) -> EffectPolicy:
        """Return the policy of a tool: the one given for its name, or the default as adjusted by its hints."""
        if (policy := self._policies.get(tool.name)) is not None:
            return policy
        return _apply_hints(self._default, tool.metadata or {}, trusted=self._trust_hints)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect, for `ToolNode(wrap_tool_call=...)`."""
        guarded = self._guarded(request)
        if guarded is None:
            return execute(request)
        return guarded.mark_replay(execute(request.override(tool=guarded.tool)))

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect, for `ToolNode(awrap_tool_call=...)`."""
        guarded = self._guarded(request)
        if guarded is None:
            return await execute(request)
        return guarded.mark_replay(await execute(request.override(tool=guarded.tool)))

    def _guarded(self, request: Any) -> _GuardedTool | None:
        tool = request.tool
        if not self._are_names_checked:
            self._require_known_names(request)
        if tool is None:  # unknown to ToolNode, which reports it, or run by another wrapper
            return None
        policy = self.policy_for(tool)
        if policy.read_only or not (bodies := _bodies(tool)):
            return None
        _require_guardable(tool, bodies)
        return _GuardedTool(self._executor, policy, request, bodies)

    def _require_known_names(self, request: Any) -> None:
        """Refuse policies of tools that do not exist: their names may be misspelled."""
        tools = getattr(request.runtime, "tools", None)
        if not tools:  # not known
            return
        names = {tool.name for tool in tools} | {getattr(request.tool, "name", None)}
        if unknown := sorted(self._policies.keys() - names):
            raise InvalidConfigError(
                f"there are policies for {', '.join(map(repr, unknown))}, but no such tools. The tools are "
                f"{', '.join(sorted(map(repr, names - {None})))}. Correct the names, or leave these policies out"
            )
        self._are_names_checked = True


def _apply_hints(policy: EffectPolicy, hints: Mapping[str, Any], *, trusted: bool) -> EffectPolicy:
    nested = hints.get("annotations")
    hints = {**hints, **nested} if isinstance(nested, Mapping) else hints
    changes = hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True
    if policy.read_only and changes:
        policy = policy.replace(read_only=False)
    if policy.idempotent and (
        hints.get("idempotentHint") is False
        or (hints.get("destructiveHint") is True and hints.get("idempotentHint") is not True)
    ):
        policy = policy.replace(idempotent=False)
    if trusted and hints.get("readOnlyHint") is True:
        return READ_ONLY
    if trusted and hints.get("idempotentHint") is True:
        return policy.replace(idempotent=IDEMPOTENT.idempotent)
    return policy


def _bodies(tool: BaseTool) -> dict[str, Callable[..., Any]]:
    """Return a tool's bodies that are not effects yet: attribute -> function."""
    run, arun = _method(tool, "_run"), _method(tool, "_arun")
    # These run the functions they were created with, unless a subclass overrides the method.
    wraps = isinstance(tool, (StructuredTool, Tool))
    bodies: dict[str, Callable[..., Any] | None] = {}
    if wraps and run in _methods("_run", StructuredTool, Tool):
        bodies["func"] = getattr(tool, "func", None)
    else:
        bodies["_run"] = getattr(tool, "_run", None)
    if wraps and arun in _methods("_arun", StructuredTool, Tool):
        bodies["coroutine"] = getattr(tool, "coroutine", None)
    elif arun not in _methods("_arun", BaseTool):  # BaseTool's runs _run in a thread
        bodies["_arun"] = getattr(tool, "_arun", None)
    return {name: body for name, body in bodies.items() if body is not None and not is_effect(body)}


def _require_guardable(tool: BaseTool, bodies: Mapping[str, Callable[..., Any]]) -> None:
    """Refuse a tool whose effect may happen outside its body."""
    for name in ("invoke", "ainvoke", "run", "arun"):
        if _method(tool, name) not in _methods(name, BaseTool, StructuredTool, Tool):
            raise EffectError(
                f"the tool {tool.name!r} is a class that overrides {name}(), so its effect may happen outside the "
                "guarded body. Put @effect on the function it calls, and give the tool the policy READ_ONLY here"
            )
    for body in bodies.values():
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise EffectError(
                f"the tool {tool.name!r} is a generator, whose body runs after the call returned. Return the result "
                "instead"
            )


def _method(tool: BaseTool, name: str) -> Any:
    return getattr(type(tool), name)


def _methods(name: str, *classes: Any) -> list[Any]:
    return [getattr(cls, name) for cls in classes]


class _GuardedTool:
    """A tool for one call, whose body is an effect."""

    def __init__(
        self,
        executor: EffectExecutor,
        policy: EffectPolicy,
        request: Any,
        bodies: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._executor = executor
        self._policy = policy
        self._request = request
        self._attempt: Attempt | None = None
        self.tool = copy.copy(request.tool)
        self._model_arguments = _model_arguments(self.tool)
        self._sources = tool_sources(self.tool, bodies.values())
        for name, body in bodies.items():
            # Tools that are classes have no pydantic fields of these names, so setattr would refuse them.
            object.__setattr__(self.tool, name, self._effect(name, body))

    def _effect(self, name: str, body: Callable[..., Any]) -> Callable[..., Any]:
        # A decorator around an async function is often a plain function, so the attribute's name counts too.
        if name in ("coroutine", "_arun") or inspect.iscoroutinefunction(body):

            @functools.wraps(body)
            async def arun(*args: Any, **kwargs: Any) -> Any:
                return await self._run(args, kwargs, lambda: body(*args, **kwargs), asynchronous=True)

            return arun

        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                return body(*args, **kwargs)

            return run_sync(self._run(args, kwargs, call, asynchronous=False))

        return run

    async def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        body: Callable[[], Awaitable[Any]],
        *,
        asynchronous: bool,
    ) -> Any:
        self._attempt = None
        invocation = self._invocation(args, kwargs)
        value, self._attempt = await run_as_tool(
            self._executor,
            invocation,
            body,
            lambda: NodeTool(self.tool, self._request.tool_call["id"]),
            asynchronous=asynchronous,
        )
        return value

    def _invocation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Invocation:
        requested, sources = self._request.tool_call, self._sources
        # Arguments in the schema as validated; arguments that the schema lets pass unnamed as the model gave them.
        recorded = {n: v for n, v in requested["args"].items() if n in kwargs and n not in sources}
        recorded |= {name: value for name, value in kwargs.items() if name in self._model_arguments}
        for name, value in kwargs.items():
            if sources.get(name) is Source.VALUE and is_plain(value):
                recorded[name] = value
        if args:
            recorded["args"] = list(args)
        arguments = Arguments(recorded, leave_out(recorded, tool_defaults(self.tool)))
        place = find_place(self._request.runtime.config)
        tool_call, name = None, requested["name"]
        if place is not None:
            given = Arguments(requested["args"], requested["args"])
            tool_call = find_tool_call(self._request.state, requested["id"], lambda: (name,), given, place)
        return Invocation(name, self._policy, arguments, place, tool_call)

    def mark_replay(self, result: Any) -> Any:
        """Return a result, with a mark on its message if the call was replayed."""
        if self._attempt is not None and self._attempt.replayed and isinstance(result, ToolMessage):
            return mark(result, self._attempt.row)
        return result


def _model_arguments(tool: BaseTool) -> frozenset[str]:
    """Return the names of the arguments that models give, without those that LangGraph injects."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, Mapping):
        return frozenset(schema.get("properties", {}))
    return frozenset(getattr(schema, "model_fields", None) or schema.__fields__)
