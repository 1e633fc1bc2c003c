"""Tools that one does not own: their bodies are made effects, one call at a time, as ToolNode runs them.

What is guarded is the body, not ToolNode's handling of it: ToolNode and the tool itself turn exceptions into messages,
and arguments that are refused before the body runs are no effect.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, Tool

from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._attempt import Attempt
from langgraph_durable.effects._location import find_place, find_tool_call
from langgraph_durable.effects._prepare import Prepared, is_effect, prepare
from langgraph_durable.effects._results import mark
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import IDEMPOTENT, READ_ONLY, EffectPolicy
from langgraph_durable.errors import EffectError, InvalidConfigError

_DEFAULT = EffectPolicy()


class ToolWrapper:
    """Makes the bodies of a ToolNode's tools effects: give its two methods to ToolNode."""

    def __init__(
        self,
        log: EffectLog,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
    ) -> None:
        """Make a wrapper.

        Args:
            log: Where the effects are kept.
            policies: By the tool's name.
            default: For the other tools.
            trust_hints: Whether a tool's own hints (readOnlyHint, idempotentHint of MCP, in its metadata) may make
                `default` laxer. They are the server's word: without this they can only make it stricter.
        """
        if not isinstance(log, EffectLog):
            raise InvalidConfigError(f"log must be saver.effects, got {log!r:.100}")
        for name, policy in (policies or {}).items():
            if not isinstance(policy, EffectPolicy):
                raise InvalidConfigError(
                    f"the policy of {name!r} must be an EffectPolicy, got {policy!r:.100}"
                )
        self._log = log
        self._policies = dict(policies or {})
        self._default = default
        self._trust_hints = trust_hints

    def policy_for(self, tool: BaseTool) -> EffectPolicy:
        """Return what is done about a tool's calls: what was said of it, else the default, as its hints have it."""
        if (policy := self._policies.get(tool.name)) is not None:
            return policy
        return _heed_hints(self._default, tool.metadata or {}, trusted=self._trust_hints)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect, for `ToolNode(wrap_tool_call=...)`."""
        guarded = self._guarded(request)
        if guarded is None:
            return execute(request)
        return guarded.marked(execute(request.override(tool=guarded.tool)))

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect, for `ToolNode(awrap_tool_call=...)`."""
        guarded = self._guarded(request)
        if guarded is None:
            return await execute(request)
        return guarded.marked(await execute(request.override(tool=guarded.tool)))

    def _guarded(self, request: Any) -> _GuardedTool | None:
        tool = request.tool
        if tool is None:  # ToolNode says so, or another wrapper carries it out
            return None
        policy = self.policy_for(tool)
        if policy.read_only or not (bodies := _bodies(tool)):
            return None
        _require_guardable(tool, bodies)
        return _GuardedTool(self._log, policy, request, bodies)


def _heed_hints(policy: EffectPolicy, hints: Mapping[str, Any], *, trusted: bool) -> EffectPolicy:
    """Return a policy as a tool's own hints have it."""
    nested = hints.get("annotations")
    hints = {**hints, **nested} if isinstance(nested, Mapping) else hints
    changes = hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True
    if policy.read_only and changes:
        policy = policy.but(read_only=False)
    if policy.idempotent and (
        hints.get("idempotentHint") is False
        or (hints.get("destructiveHint") is True and hints.get("idempotentHint") is not True)
    ):
        policy = policy.but(idempotent=False)
    if trusted and hints.get("readOnlyHint") is True:
        return READ_ONLY
    if trusted and hints.get("idempotentHint") is True:
        return policy.but(idempotent=IDEMPOTENT.idempotent)
    return policy


def _bodies(tool: BaseTool) -> dict[str, Callable[..., Any]]:
    """Return the functions that do what a tool does and are no effects, by the attribute that each is found under."""
    kind = type(tool)
    wraps = isinstance(
        tool, (StructuredTool, Tool)
    )  # functions, unless a class made from them does otherwise
    bodies: dict[str, Callable[..., Any] | None] = {}
    if wraps and kind._run in (StructuredTool._run, Tool._run):
        bodies["func"] = getattr(tool, "func", None)
    else:
        bodies["_run"] = tool._run
    if wraps and kind._arun in (StructuredTool._arun, Tool._arun):
        bodies["coroutine"] = getattr(tool, "coroutine", None)
    elif kind._arun is not BaseTool._arun:  # which runs _run in a thread
        bodies["_arun"] = tool._arun
    return {name: body for name, body in bodies.items() if body is not None and not is_effect(body)}


def _require_guardable(tool: BaseTool, bodies: Mapping[str, Callable[..., Any]]) -> None:
    """Refuse a tool whose effect could be elsewhere than in its body, before it runs."""
    kind = type(tool)
    for name in ("invoke", "ainvoke", "run", "arun"):
        if getattr(kind, name) not in [getattr(known, name) for known in (BaseTool, StructuredTool, Tool)]:
            raise EffectError(
                f"the tool {tool.name!r} is a class that overrides {name}(), so what it does may be outside of the "
                "body that is guarded: put @effect on what it calls, and give it the policy READ_ONLY here"
            )
    for body in bodies.values():
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise EffectError(
                f"the tool {tool.name!r} is a generator, whose body runs after it returned: make it return what it did"
            )


class _GuardedTool:
    """A tool for one call, whose body is an effect."""

    def __init__(
        self, log: EffectLog, policy: EffectPolicy, request: Any, bodies: Mapping[str, Callable[..., Any]]
    ) -> None:
        self._log = log
        self._policy = policy
        self._request = request
        self._attempt: Attempt | None = None
        self.tool = copy.copy(request.tool)
        self._own = _model_arguments(self.tool)
        for name, body in bodies.items():
            # Not setattr: pydantic has no fields of these names in tools that are classes of their own.
            object.__setattr__(self.tool, name, self._effect(name, body))

    def _effect(self, name: str, body: Callable[..., Any]) -> Callable[..., Any]:
        # By its name too: what decorates an async function is often a plain one, which returns what is to be awaited.
        if name in ("coroutine", "_arun") or inspect.iscoroutinefunction(body):

            @functools.wraps(body)
            async def arun(*args: Any, **kwargs: Any) -> Any:
                prepared = self._prepare(args, kwargs, asynchronous=True)
                return await self._run(prepared, lambda: body(*args, **kwargs))

            return arun

        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            prepared = self._prepare(args, kwargs, asynchronous=False)

            async def call() -> Any:
                return body(*args, **kwargs)

            return run_sync(self._run(prepared, call))

        return run

    async def _run(self, prepared: Prepared, body: Callable[[], Awaitable[Any]]) -> Any:
        self._attempt = None
        value, self._attempt = await prepared.run_attempt(body)
        if self._attempt.replayed and self.tool.response_format == "content_and_artifact":
            # What verify found, or a human said, may be but the content, or the pair as JSON has it.
            is_pair = isinstance(value, (list, tuple)) and len(value) == 2
            return tuple(value) if is_pair else (value, None)
        return value

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, asynchronous: bool) -> Prepared:
        request = self._request
        # What the schema names, as it was validated, and what it lets pass without naming it, as the model gave it.
        given = {name: value for name, value in request.tool_call["args"].items() if name in kwargs}
        arguments = given | {name: value for name, value in kwargs.items() if name in self._own}
        if args:
            arguments["args"] = list(args)
        place = find_place(request.runtime.config)
        call = None
        if place is not None:
            called = request.tool_call
            call = find_tool_call(request.state, called["id"], called["name"], called["args"], place)
        name = self.tool.name
        return prepare(self._log, name, self._policy, arguments, place, call, asynchronous=asynchronous)

    def marked(self, result: Any) -> Any:
        """Mark the message of a replayed call."""
        if self._attempt is not None and self._attempt.replayed and isinstance(result, ToolMessage):
            return mark(result, self._attempt)
        return result


def _model_arguments(tool: BaseTool) -> frozenset[str]:
    """Return the names of the arguments that a model gives, so without those that LangGraph injects."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, Mapping):
        return frozenset(schema.get("properties", {}))
    return frozenset(getattr(schema, "model_fields", None) or schema.__fields__)
