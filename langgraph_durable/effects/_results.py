"""What a replayed call returns: the recorded outcome, adapted to the call that asks now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolMessage

from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.database import Session
from langgraph_durable.effects import _errors, _store
from langgraph_durable.effects._attempt import Attempt, EffectCall, describe
from langgraph_durable.effects._encoding import decode_result
from langgraph_durable.effects._location import ToolCall
from langgraph_durable.effects._rows import EffectRow
from langgraph_durable.errors import CheckpointCorruptedError


async def replay(call: EffectCall, row: EffectRow, session: Session | None = None) -> Attempt:
    """Return a completed effect as an attempt that has its result.

    Raises:
        EffectForkedError: It took place on another branch, and the policy refuses that.
        EffectError: Its result could not be stored, or has expired.
        CheckpointCorruptedError: Its result is damaged.
    """
    if call.policy.on_fork == "raise" and is_fork(call, row):
        raise _errors.forked(row)
    if row.result_lost:
        raise _errors.result_lost(row)
    attempt = Attempt(row, call.policy, replayed=True)
    encoded = await stored_result(call, row, session)
    if row.expired_at is not None:
        raise _errors.result_expired(row)
    if encoded is None and (row.result_type is not None or row.result is not None):
        raise CheckpointCorruptedError(
            f"cannot read the result of {describe(row)}: a part of it is missing. The effect took place, and is not "
            "run again"
        )
    if encoded is not None:
        what = f"the result of {describe(row)}"
        attempt.value, attempt.raises = decode_result(call.serde, encoded, what)
    return attempt


def is_fork(call: EffectCall, row: EffectRow) -> bool:
    """Return whether the effect was requested by another checkpoint than the one this task was made from."""
    return call.place is not None and row.scope == "call" and row.task_id != call.place.task_id


async def stored_result(call: EffectCall, row: EffectRow, session: Session | None = None) -> Encoded | None:
    """Return an effect's result as it is stored, wherever it is stored."""
    if row.result_type is None:
        return None
    data = row.result
    if data is None:
        data = await _store.get_large_result(session or call.db, row.effect_id)
    return (row.result_type, data) if data is not None else None


# --- for the caller ---


def give(attempt: Attempt, call: ToolCall | None) -> Any:
    """Return an effect's value as the body did, or raise the Command that it raised."""
    if not attempt.replayed:
        return attempt.value
    value = _rebind(attempt.value, attempt, call)
    if attempt.raises:
        from langgraph.errors import ParentCommand

        raise ParentCommand(value)
    return value


def mark(message: ToolMessage, attempt: Attempt) -> ToolMessage:
    """Record in a message's response_metadata that it is a replay, and of which effect."""
    row = attempt.row
    origin = {
        "replayed": True,
        "effect_id": format_ulid(row.effect_id),
        "first_attempt_at": row.first_attempt_at.isoformat(),
        "attempts": row.attempts,
        "source": row.source,
    }
    metadata = {**message.response_metadata, "effect": origin}
    return message.model_copy(update={"response_metadata": metadata})


def _rebind(value: Any, attempt: Attempt, call: ToolCall | None) -> Any:
    """Give messages a new id, the tool_call_id of the call that asks now, and a mark of their effect."""
    if isinstance(value, ToolMessage):
        tool_call_id = call.tool_call_id if call is not None else value.tool_call_id
        bound = value.model_copy(update={"tool_call_id": tool_call_id, "id": str(uuid4())})
        return mark(bound, attempt)
    if type(value) in (list, tuple):  # not a named tuple, whose constructor takes fields
        return type(value)(_rebind(item, attempt, call) for item in value)
    update = getattr(value, "update", None)
    if type(value).__name__ == "Command" and isinstance(update, dict):
        return replace(value, update={name: _rebind(item, attempt, call) for name, item in update.items()})
    return value


def mark_plain_result(value: Any, attempt: Attempt, runtime: Any, function: Any) -> Any:
    """Return a replayed result as the marked ToolMessage that its tool would make of it.

    Only where ToolNode runs a tool whose function is the effect itself. Any other caller expects the function's value.

    Args:
        value: What the body returned when it ran.
        attempt: Whose value it is.
        runtime: What ToolNode passed to the tool; None if it did not call it.
        function: The effect's function.
    """
    tool = next((t for t in getattr(runtime, "tools", ()) if _runs(t, function)), None)
    if not attempt.replayed or tool is None:
        return value
    with_artifact = tool.response_format == "content_and_artifact"
    content, artifact = value if with_artifact else (value, None)
    message = _message_of(content, artifact, runtime.tool_call_id, tool.name)
    if message is None:
        return value
    message = mark(message, attempt)
    return (message, artifact) if with_artifact else message


def _runs(tool: Any, function: Any) -> bool:
    return getattr(tool, "func", None) is function or getattr(tool, "coroutine", None) is function


def _message_of(content: Any, artifact: Any, tool_call_id: str | None, name: str) -> ToolMessage | None:
    """Return the message that langchain makes of a tool's plain result; None if it does not make one."""
    try:
        from langchain_core.tools.base import _format_output
    except ImportError:
        return None
    made = _format_output(content, artifact, tool_call_id, name, "success")
    return made if isinstance(made, ToolMessage) and made is not content else None
