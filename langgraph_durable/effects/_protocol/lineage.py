"""How effects relate to a task that calls: whether its call repeats theirs, or is wanted besides.

docs/design/identity.md has the table. The relations are computed on the server, for many effects in one statement.
"""

from __future__ import annotations

import json
import uuid
from typing import NamedTuple

from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import Row
from langgraph_durable.effects._identity.hashing import digest
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._protocol.attempt import EffectCall
from langgraph_durable.effects._storage import statements as sql
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import EffectRow, Relation, request_params, scope_thread_of

_FIRST_NUMBERS = 8
"""How many effects of a family are read at first; if there are more, each time eight times as many."""
_MOST_CANDIDATES = 50


class Related(NamedTuple):
    """An effect, and its relation to the task that calls."""

    row: EffectRow
    relation: Relation


def needs_relation(call: EffectCall, row: EffectRow) -> bool:
    """Return whether an effect that has the call's key may be another call's.

    It may be if it was requested by another task. The effects inside another effect are that one's.
    """
    if call.place is None or row.scope != "call" or call.request.outer_id is not None:
        return False
    return row.task_id != call.place.task_id


def numbered_key(family: bytes, number: int) -> bytes:
    """Return the key of a call that is wanted besides those with the numbers before."""
    return digest(family.hex(), number) if number else family


async def find_family(call: EffectCall, place: Place, family: bytes) -> list[Related]:
    """Return the effects of calls that share a key, by their numbers.

    Round trips: 1; more if they are more than eight.
    """
    found: list[Related] = []
    size = _FIRST_NUMBERS
    while True:
        keys = [numbered_key(family, number) for number in range(len(found), len(found) + size)]
        params = {"scope_thread": scope_thread_of(call.request), "keys": keys}
        rows = await call.db.fetch(sql.FIND_FAMILY, params | _place_params(call, place))
        by_key = {related.row.key: related for related in map(_related, rows)}
        for key in keys:
            if key not in by_key:
                return found
            found.append(by_key[key])
        size *= _FIRST_NUMBERS


async def find_candidates(call: EffectCall, place: Place) -> list[Related]:
    """Return the effects whose outcome the call may be asking for again: undelivered ones, then those of forks.

    Round trips: 1.
    """
    request = call.request
    params = {
        "scope_thread": scope_thread_of(request),
        "key": request.key,
        "tool": request.tool,
        "input_hash": request.input_hash,
        "outer_id": request.outer_id,
        "limit": _MOST_CANDIDATES,
    }
    rows = await call.db.fetch(sql.FIND_CANDIDATES, params | _place_params(call, place))
    return [_related(row) for row in rows]


async def adopt(call: EffectCall, row: EffectRow, actor: str, reason: str) -> EffectRow | None:
    """Give the call's effect, which is new or failed, the outcome of a completed one, which no other call gets then.

    Returns:
        The effect, or None if another call took that outcome, or the call has an effect that is not failed.

    Round trips: 1. Transaction: its own.
    """
    params = {
        **request_params(call.request),
        "candidate": row.effect_id,
        "note_count": row.note_count,
        "effect_id": store.new_effect_id(),
        "actor": actor,
        "reason": reason,
    }
    rows = await call.db.fetch(sql.ADOPT, params)
    return store.effect_row(rows[0]) if rows else None


async def record_delivery(
    db: Database, effect_id: uuid.UUID, place: Place, *, note_count: int | None = None
) -> bool:
    """Record that a task is given the outcome of an effect that it did not carry out.

    Args:
        db: Where.
        effect_id: The effect.
        place: The task.
        note_count: The effect's, as read. If it rose since then, nothing is recorded.

    Returns:
        Whether it is recorded now.

    Round trips: 1. Transaction: its own.
    """
    params = {
        "effect_id": effect_id,
        "note_count": note_count,
        "task_id": place.task_id,
        "checkpoint_ns": place.checkpoint_ns,
        "checkpoints": place.checkpoints_json,
    }
    return bool(await db.fetch(sql.RECORD_DELIVERY, params))


async def record_found(call: EffectCall, row: EffectRow) -> None:
    """Record that the task which carried out an effect is given an outcome that was found out later.

    Round trips: 1, or none if the body told the outcome itself.
    """
    if row.source in ("verified", "human") and call.place is not None and call.request.scope == "call":
        await record_delivery(call.db, row.effect_id, call.place)


async def acknowledge_effect(db: Database, effect_id: uuid.UUID, actor: str, reason: str) -> None:
    """Note that a human dealt with an effect; once. Round trips: 1."""
    await db.fetch(sql.ACKNOWLEDGE, {"effect_id": effect_id, "actor": actor, "reason": reason})


def _place_params(call: EffectCall, place: Place) -> dict[str, object]:
    return {
        "thread_id": place.thread_id,
        "task_id": place.task_id,
        "checkpoint_ns": place.checkpoint_ns,
        "checkpoints": place.checkpoints_json,
        "attempts": json.dumps(call.context.known.attempts.of(place.thread_id)),
    }


def _related(row: Row) -> Related:
    return Related(store.effect_row(row[1:]), Relation(row[0]))
