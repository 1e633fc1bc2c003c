"""ToolMessages that answer tool calls: made from an effect's result, as ToolNode would, or from what is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, ToolMessage

from langgraph_durable.effects._protocol.results import origin_of
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.errors import EffectError


def message_of(value: Any, tool_call_id: str, name: str, *, has_artifact: bool) -> ToolMessage:
    """Return the ToolMessage that ToolNode makes of a tool's result, if that is neither a message nor a Command."""
    artifact = None
    if has_artifact and isinstance(value, tuple) and len(value) == 2:
        value, artifact = value
    if isinstance(value, ToolMessage):
        return value
    return ToolMessage(_content_of(value), name=name, tool_call_id=tool_call_id, artifact=artifact)


def _content_of(value: Any) -> str | list[str | dict[Any, Any]]:
    """Return a tool's result as content: text and lists of content blocks as they are, other values as JSON."""
    from langchain_core.tools.base import TOOL_MESSAGE_BLOCK_TYPES

    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        blocks = [isinstance(part, dict) and part.get("type") in TOOL_MESSAGE_BLOCK_TYPES for part in value]
        if all(blocks):
            return list(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except Exception:  # as langchain does
        return str(value)


def messages_in(value: Any) -> list[BaseMessage]:
    """Return the messages in what was written to a channel: one, or a list of them."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if isinstance(part, BaseMessage)]


def commands_in(value: Any) -> list[Any]:
    """Return the Commands in a tool's result: one, or a list of them and of messages."""
    from langgraph.types import Command

    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if isinstance(part, Command)]


def writes_of(commands: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return what Commands write to the channels of the graph they are in."""
    from langgraph.types import Command

    writes: list[tuple[str, Any]] = []
    for command in commands:
        update = command.update
        if command.graph == Command.PARENT or update is None:
            continue
        pairs = update.items() if isinstance(update, dict) else update
        writes += [
            (pair[0], pair[1])
            for pair in pairs
            if isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)
        ]
    return writes


def answers_in(value: Any) -> list[BaseMessage]:
    """Return the messages in a tool's result that is a message, a Command, or a list of these."""
    found = messages_in(value)
    for command in commands_in(value):
        update = command.update
        values = update.values() if isinstance(update, dict) else [pair[-1] for pair in update or ()]
        for written in values:
            found += messages_in(written)
    return found


# --- what is known of an effect without a result ---


def notice(
    text: str, tool_call_id: str, name: str, row: EffectRow | None, *, is_error: bool = True
) -> ToolMessage:
    """Return an answer that says what is known of a call, and in its mark, of which effect."""
    mark = {"replayed": False, **(origin_of(row) if row is not None else {})}
    mark |= {"healed": True, "state": row.state if row is not None else None}
    return ToolMessage(
        text,
        name=name,
        tool_call_id=tool_call_id,
        status="error" if is_error else "success",
        id=str(uuid4()),
        additional_kwargs={"effect": mark},
        response_metadata={"effect": mark},
    )


def text_about(name: str, row: EffectRow, policy: EffectPolicy | None) -> str:
    """Return what the model has to know of an effect that has no result."""
    call = f"The call of {name}"
    if row.state == "completed":
        return f"{call} took place, but its result was not kept. Do not repeat it."
    if row.state == "failed":
        error = (row.error or "").strip(" :.")
        return f"{call} did not take place" + (f": {error}." if error else ".")
    if row.state == "abandoned":
        return (
            f"It is not known whether the call of {name} took place, and a human decided to give it up. Do not "
            "repeat it."
        )
    if row.state == "claimed" or (row.state == "suspended" and row.previous_state == "claimed"):
        return f"{call} was not run."
    if policy is not None and policy.idempotent:
        return f"It is not known whether the call of {name} took place. It is safe to repeat it."
    if row.state == "suspended":
        return (
            f"{call} stopped to wait for a human's answer, which did not come. It did not finish. What it did before "
            "it stopped may have taken effect. Do not repeat it before that is clear."
        )
    may = (
        "is still running elsewhere, and may take place" if row.state == "issued" else "may have taken place"
    )
    return f"It is not known what became of the call of {name}: it {may}. Do not repeat it."


def text_about_none(name: str, policy: EffectPolicy | None) -> str:
    """Return what the model has to know of a call of which nothing is recorded.

    Args:
        name: The tool.
        policy: Its policy; None if it may not be an effect, so that it may have run without a record.
    """
    if policy is None:
        return f"The call of {name} has no recorded result. It is not known whether it ran."
    if policy.read_only:
        return f"The call of {name} has no recorded result. It changes nothing, so it may be repeated."
    return f"The call of {name} was not run."


# --- final decisions ---


def refusal_of(exc: EffectError, tool_call_id: str, name: str, state: str) -> ToolMessage:
    """Return the answer to a call that a human decided against: it is final, so no exception would help."""
    text = (
        f"It is not known whether the call of {name} took place, and a human decided to give it up. Do not repeat it."
        if state == "abandoned"
        else f"The call of {name} did not take place, and a human decided that it is not to be tried again."
    )
    mark = {"replayed": False, "effect_id": getattr(exc, "effect_id", None), "state": state}
    return ToolMessage(
        text,
        name=name,
        tool_call_id=tool_call_id,
        status="error",
        additional_kwargs={"effect": mark},
        response_metadata={"effect": mark},
    )
