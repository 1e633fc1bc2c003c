"""Which recorded effect belongs to which tool call of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable.effects._healing.branch import Branch
from langgraph_durable.effects._healing.conversation import Conversation, RequestedCall
from langgraph_durable.effects._identity.hashing import canonical
from langgraph_durable.effects._identity.location import parent_ns
from langgraph_durable.effects._storage.encoding import record_of
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.errors import EffectError


def match_effects(
    serde: SerializerProtocol, conversation: Conversation, rows: Sequence[EffectRow], branch: Branch
) -> dict[RequestedCall, EffectRow]:
    """Return the effects of the conversation's calls.

    The message's id identifies a call also on another branch. A call whose message has no id is identified by its own
    id, and only on this branch. If a message has several calls with one id, the tool's name and the arguments say
    which of them an effect is for.

    Args:
        serde: The saver's serializer.
        conversation: The conversation.
        rows: Effects with the messages' and calls' ids, oldest first.
        branch: The checkpoints that lead here.
    """
    matched: dict[RequestedCall, EffectRow] = {}
    for row in rows:
        calls = [
            call
            for call in conversation.calls
            if call.tool_call_id == row.tool_call_id and call.message.id == row.message_id
        ]
        if row.message_id is None:
            if not is_on(row, branch):
                continue
            calls = [call for call in calls if call.answer is None]
        if not calls:
            continue
        if all(call.is_alone_by_id for call in calls):
            # A later effect of the same message is of a later step.
            matched[calls[-1]] = row
        elif (call := _fitting(serde, calls, row, matched)) is not None:
            matched[call] = row
    return matched


def is_on(row: EffectRow, branch: Branch) -> bool:
    """Return whether an effect was requested by a checkpoint of a branch."""
    return (parent_ns(row.checkpoint_ns or ""), row.checkpoint_id or "") in branch.sources


def _fitting(
    serde: SerializerProtocol,
    calls: Sequence[RequestedCall],
    row: EffectRow,
    matched: Mapping[RequestedCall, EffectRow],
) -> RequestedCall | None:
    left = [call for call in calls if call not in matched]
    left = [call for call in left if call.name == row.tool] or left
    args = record_of(serde, row).args
    left = [call for call in left if _fits(call.args, args)] or left
    return left[0] if left else None


def _fits(given: Mapping[str, Any], args: Any) -> bool:
    """Return whether recorded arguments may be those a model gave, with defaults for the rest."""
    try:
        return isinstance(args, Mapping) and all(
            name in args and canonical(args[name]) == canonical(value) for name, value in given.items()
        )
    except EffectError:
        return False
