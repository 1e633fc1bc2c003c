"""What a replayed call returns: the recorded outcome, adapted to the call that asks now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable.effects._identity.location import ToolCall
from langgraph_durable.effects._protocol import effect_errors
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, describe
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.encoding import decode_result
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.errors import CheckpointCorruptedError


class _ResultOf:
    """How messages name an effect's result: formatted only if there is an error."""

    def __init__(self, row: EffectRow) -> None:
        self._row = row

    def __str__(self) -> str:
        return f"the result of {describe(self._row)}"


async def replay(call: EffectCall, row: EffectRow, session: Session | None = None) -> Attempt:
    """Return a completed effect as an attempt that has its result.

    Raises:
        EffectError: Its result could not be stored, or has expired.
        CheckpointCorruptedError: Its result is damaged.
    """
    if row.result_lost:
        raise effect_errors.result_lost(row)
    attempt = Attempt(row, call.policy, replayed=True)
    encoded = await stored_result(call, row, session)
    if row.expired_at is not None:
        raise effect_errors.result_expired(row)
    if encoded is None and (row.result_type is not None or row.result is not None):
        raise CheckpointCorruptedError(
            f"cannot read the result of {describe(row)}: a part of it is missing. The effect took place, and is not "
            "run again"
        )
    if encoded is not None:
        attempt.value, attempt.raises = decode_result(call.serde, encoded, _ResultOf(row))
    return attempt


async def stored_result(call: EffectCall, row: EffectRow, session: Session | None = None) -> Encoded | None:
    """Return an effect's result as it is stored, wherever it is stored."""
    if row.result_type is None:
        return None
    data = row.result
    if data is None:
        data = await store.get_large_result(session or call.db, row.effect_id)
    return (row.result_type, data) if data is not None else None


async def recorded_value(
    db: Database, serde: SerializerProtocol, row: EffectRow, call: ToolCall
) -> tuple[bool, Any]:
    """Return whether the result of a completed effect is stored, and the result as a replay for a call has it.

    Raises:
        CheckpointCorruptedError: It is damaged.

    Round trips: none; 1 for a large result.
    """
    if row.result_lost or row.expired_at is not None:
        return False, None
    data = row.result
    if row.result_type is not None and data is None:
        data = await store.get_large_result(db, row.effect_id)
    if row.result_type is None or data is None:
        # Without a type there was no result to store, as after a decision without one.
        return row.result_type is None, None
    value, _ = decode_result(serde, (row.result_type, data), f"the result of {describe(row)}")
    return True, _rebind(value, row, call)


# --- for the caller ---


def give(attempt: Attempt, call: ToolCall | None) -> Any:
    """Return an effect's value as the body did, or raise the Command that it raised."""
    if not attempt.replayed:
        return attempt.value
    value = _rebind(attempt.value, attempt.row, call)
    if attempt.raises:
        from langgraph.errors import ParentCommand

        raise ParentCommand(value)
    return value


def origin_of(row: EffectRow) -> dict[str, Any]:
    """Return what a mark says of an effect."""
    return {
        "effect_id": format_ulid(row.effect_id),
        "first_attempt_at": row.first_attempt_at.isoformat(),
        "attempts": row.attempts,
        "source": row.source,
    }


def mark(message: ToolMessage, row: EffectRow, **more: Any) -> ToolMessage:
    """Record in a message that it is a replay, and of which effect.

    In additional_kwargs, which other code keeps, and in response_metadata, where it was first.
    """
    origin = {"replayed": True, **origin_of(row), **more}
    return message.model_copy(
        update={
            "additional_kwargs": {**message.additional_kwargs, "effect": origin},
            "response_metadata": {**message.response_metadata, "effect": origin},
        }
    )


def _rebind(value: Any, row: EffectRow, call: ToolCall | None) -> Any:
    """Give messages a new id, the tool_call_id of the call that asks now, and a mark of their effect."""
    if isinstance(value, ToolMessage):
        tool_call_id = call.tool_call_id if call is not None else value.tool_call_id
        bound = value.model_copy(update={"tool_call_id": tool_call_id, "id": str(uuid4())})
        return mark(bound, row)
    if type(value) in (list, tuple):  # not a named tuple, whose constructor takes fields
        return type(value)(_rebind(item, row, call) for item in value)
    update = getattr(value, "update", None)
    if type(value).__name__ == "Command" and isinstance(update, dict):
        return replace(value, update={name: _rebind(item, row, call) for name, item in update.items()})
    if type(value).__name__ == "Command" and isinstance(update, (list, tuple)):  # pairs
        return replace(value, update=_rebind(update, row, call))
    return value
