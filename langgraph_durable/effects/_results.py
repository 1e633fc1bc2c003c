"""What a replayed call gives back: the outcome, made to fit the call that asks now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolMessage

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable.effects._attempt import Attempt
from langgraph_durable.effects._location import ToolCall


def give(attempt: Attempt, call: ToolCall | None) -> Any:
    """Return an effect's value, as the body did, or raise the Command that it raised."""
    if not attempt.replayed:
        return attempt.value
    value = _rebind(attempt.value, attempt, call)
    if attempt.raises:
        from langgraph.errors import ParentCommand

        raise ParentCommand(value)
    return value


def mark(message: ToolMessage, attempt: Attempt) -> ToolMessage:
    """Say in a message's response_metadata that it is of an effect which took place before."""
    row = attempt.row
    told = {
        "replayed": True,
        "effect_id": format_ulid(row.effect_id),
        "first_attempt_at": row.first_attempt_at.isoformat(),
        "attempts": row.attempts,
        "source": row.source,
    }
    metadata = {**message.response_metadata, "effect": told}
    return message.model_copy(update={"response_metadata": metadata})


def _rebind(value: Any, attempt: Attempt, call: ToolCall | None) -> Any:
    """Give messages the id of the call that asks now, ids of their own, and a mark that tells where they are from."""
    if isinstance(value, ToolMessage):
        tool_call_id = call.tool_call_id if call is not None else value.tool_call_id
        bound = value.model_copy(update={"tool_call_id": tool_call_id, "id": str(uuid4())})
        return mark(bound, attempt)
    if type(value) in (list, tuple):  # a named tuple is made of fields, not of a sequence
        return type(value)(_rebind(item, attempt, call) for item in value)
    update = getattr(value, "update", None)
    if type(value).__name__ == "Command" and isinstance(update, dict):
        return replace(value, update={name: _rebind(item, attempt, call) for name, item in update.items()})
    return value
