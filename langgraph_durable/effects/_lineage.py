"""Where the outcome of an effect was handed out."""

from __future__ import annotations

import json
import uuid

from langgraph_durable._postgres.database import Database
from langgraph_durable.effects import _statements as sql
from langgraph_durable.effects._location import Place


async def record_delivery(db: Database, effect_id: uuid.UUID, place: Place) -> None:
    """Record that a task was given the outcome of an effect that it did not carry out.

    Round trips: 1. Transaction: its own.
    """
    await db.fetch(
        sql.RECORD_DELIVERY,
        {
            "effect_id": effect_id,
            "task_id": place.task_id,
            "checkpoint_ns": place.checkpoint_ns,
            "checkpoints": json.dumps(dict(place.checkpoints)),
        },
    )
