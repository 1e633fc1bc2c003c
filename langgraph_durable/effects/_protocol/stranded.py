"""Calls of a task that runs again with other arguments than before.

Where arguments are in the key, code that computes other ones when it runs again asks for another effect, and leaves the
first one behind. That is seen here, before the other one begins.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_durable._checkpoints.codec import decode
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable.effects._protocol.attempt import EffectCall, describe
from langgraph_durable.effects._storage import statements as sql
from langgraph_durable.effects._storage.rows import EffectRow, request_params
from langgraph_durable.effects._storage.store import effect_row
from langgraph_durable.errors import CheckpointCorruptedError, EffectConflictError

_TIMEOUT = 2.0
"""How long the calls that were made before may take to come: those beside this one may come in any order."""
_POLL = 0.01


async def require_none_stranded(call: EffectCall) -> None:
    """Let a new call of a task that runs again wait for the calls that the task made before, and did not repeat yet.

    Raises:
        EffectConflictError: They do not come.
    """
    calls = call.counted_in
    if calls is None:
        return
    rows = await call.db.fetch(sql.LIST_STRANDED, request_params(call.request))
    stranded = [effect_row(row) for row in rows]
    deadline = time.monotonic() + _TIMEOUT
    while stranded := [row for row in stranded if row.key not in calls.keys]:
        if time.monotonic() >= deadline:
            raise _conflict(call, stranded[0])
        await call.db.sleep(_POLL)


def _conflict(call: EffectCall, row: EffectRow) -> EffectConflictError:
    request = call.request
    where = f"Task {request.task_id!r}" if request.outer_id is None else "The effect that calls it"
    now, before = _shown(call, request.encode_input()), _shown(call, (row.input_type, row.input))
    return EffectConflictError(
        f"{request.tool!r} is called{now}, but an earlier execution called it{before}: {describe(row)}, "
        f"{row.state}. {where} runs again and has not repeated that call, so this one may be the same. Compute the "
        "arguments from the state alone, or give the effect a key= that is the same each time. If both are wanted, "
        f"call saver.effects.acknowledge({format_ulid(row.effect_id)!r}) and run again",
        format_ulid(row.effect_id),
    )


def _shown(call: EffectCall, encoded: tuple[Any, Any] | None) -> str:
    """Return arguments as messages show them: not at all if they are stored encrypted."""
    if encoded is None or None in encoded or isinstance(call.serde, EncryptedSerializer):
        return " with other arguments"
    with suppress(CheckpointCorruptedError):
        return f" with {decode(call.serde, encoded, 'the arguments')!r:.200}"
    return " with other arguments"
