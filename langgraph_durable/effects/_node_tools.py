"""Effects that are the bodies of a ToolNode's tools: what they return in place of plain replays and final errors.

A run that raises at every attempt helps no one. The model gets a ToolMessage that says what is known, and the run
continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import ToolMessage

from langgraph_durable.effects._healing.answers import message_of, refusal_of
from langgraph_durable.effects._protocol.attempt import Attempt
from langgraph_durable.effects._protocol.executor import EffectExecutor, Invocation
from langgraph_durable.effects._protocol.final import FINAL_ERRORS
from langgraph_durable.effects._protocol.results import mark
from langgraph_durable.errors import EffectAbandonedError, EffectError


async def run_as_tool(
    executor: EffectExecutor,
    invocation: Invocation,
    body: Callable[[], Awaitable[Any]],
    find_tool: Callable[[], NodeTool | None],
    *,
    asynchronous: bool,
) -> tuple[Any, Attempt | None]:
    """Run a body at most once for a call.

    Args:
        executor: Carries it out.
        invocation: The call.
        body: The body.
        find_tool: Returns the tool whose body it is; None if what it returns goes to code.
        asynchronous: Whether to use the saver's async connections.

    Returns:
        What the tool's body has to return; and the attempt, unless a human decided against the call.

    Raises:
        EffectError: See EffectExecutor.run_invocation. For code, also a human's decision against the call.
    """
    is_inner = False

    async def watched() -> Any:
        nonlocal is_inner
        try:
            return await body()
        except FINAL_ERRORS:  # of an effect that the body called, which decides nothing about this one
            is_inner = True
            raise

    try:
        value, attempt = await executor.run_invocation(invocation, watched, asynchronous=asynchronous)
    except FINAL_ERRORS as exc:
        if is_inner or (tool := find_tool()) is None:
            raise
        return tool.refused(exc), None
    if attempt.replayed and (tool := find_tool()) is not None:
        value = tool.replayed(value, attempt)
    return value, attempt


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
        return self.result(
            refusal_of(
                exc,
                self.tool_call_id,
                self.name,
                "abandoned" if isinstance(exc, EffectAbandonedError) else "failed",
            )
        )

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
    """Return whether a tool's result has messages: it is a message, a Command, or a list or pair with one."""
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
