"""Decisions that end a tool call for good, and what a tool returns in place of their errors.

A run that raises at every attempt helps no one: within a ToolNode the model gets a ToolMessage that says what is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import ToolMessage

from langgraph_durable.effects._answers import message_of, refusal_of
from langgraph_durable.effects._attempt import Attempt
from langgraph_durable.effects._results import mark
from langgraph_durable.errors import EffectAbandonedError, EffectError


class DeclaredFailedError(EffectError):
    """A human declared the effect failed: it did not take place, and the task must not try it again."""

    def __init__(self, message: str, effect_id: str | None = None) -> None:
        super().__init__(message)
        self.effect_id = effect_id


FINAL_ERRORS = (EffectAbandonedError, DeclaredFailedError)


def answer_to_final(exc: EffectError, tool_call_id: str, name: str) -> ToolMessage:
    """Return the answer to a tool call that ends with one of FINAL_ERRORS."""
    state = "abandoned" if isinstance(exc, EffectAbandonedError) else "failed"
    return refusal_of(exc, tool_call_id, name, state)


class NodeTool:
    """A tool as a ToolNode runs it: whatever its body returns becomes the answer to a tool call."""

    def __init__(self, tool: Any, tool_call_id: str) -> None:
        self.name: str = tool.name
        self.tool_call_id = tool_call_id
        self.has_artifact = tool.response_format == "content_and_artifact"

    def result(self, message: ToolMessage) -> Any:
        """Return what the tool's body has to return for a message to be the answer."""
        return (message, message.artifact) if self.has_artifact else message

    def refused(self, exc: EffectError) -> Any:
        """Return what the tool's body returns for one of FINAL_ERRORS."""
        return self.result(answer_to_final(exc, self.tool_call_id, self.name))

    def replayed(self, value: Any, attempt: Attempt) -> Any:
        """Return a replayed result, as a message with a mark if it would become a plain one."""
        if is_message_like(value):
            return value
        if self.has_artifact and not isinstance(value, tuple):
            # A result from verify or from a human may be the content alone, or the pair as a JSON list.
            value = tuple(value) if isinstance(value, list) and len(value) == 2 else (value, None)
        message = message_of(value, self.tool_call_id, self.name, has_artifact=self.has_artifact)
        return self.result(mark(message, attempt.row))


def is_message_like(value: Any) -> bool:
    """Return whether a tool's result has messages of its own: a message, a Command, or a list or pair with one."""
    from langgraph.types import Command

    if isinstance(value, (list, tuple)):
        return any(isinstance(part, (ToolMessage, Command)) for part in value)
    return isinstance(value, (ToolMessage, Command))


def node_tool(runtime: Any, function: Callable[..., Any]) -> NodeTool | None:
    """Return the tool whose body a function is, if a ToolNode runs it for a tool call.

    A function that the body calls is not the body: what it returns goes to code, not to the model.
    """
    tool_call_id = getattr(runtime, "tool_call_id", None)
    if not tool_call_id:
        return None
    for tool in getattr(runtime, "tools", None) or ():
        bodies = [getattr(tool, "func", None), getattr(tool, "coroutine", None)]
        bodies += [getattr(type(tool), "_run", None), getattr(type(tool), "_arun", None)]
        if any(body is function for body in bodies):
            return NodeTool(tool, tool_call_id)
    return None
