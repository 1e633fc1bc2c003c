"""Retention of finished effects: their payloads expire, the fact that they ran is kept."""

from __future__ import annotations

from datetime import timedelta

from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import load

EXPIRE_EFFECTS = load(__package__, "expire_effects")
COUNT_EXPIRABLE_EFFECTS = load(__package__, "count_expirable_effects")
COUNT_ORPHANED_EFFECTS = load(__package__, "count_orphaned_effects")


async def expire_effects(db: Database, older_than: timedelta, *, dry_run: bool) -> int:
    """Remove the arguments and results of effects that ended longer ago, and count these effects."""
    params = {"older_than": older_than}
    if dry_run:
        [(count,)] = await db.fetch(COUNT_EXPIRABLE_EFFECTS, params)
        return int(count)
    return len(await db.fetch(EXPIRE_EFFECTS, params))


async def count_orphaned_effects(db: Database) -> int:
    """Count the effects that need a decision and whose thread was deleted."""
    [(count,)] = await db.fetch(COUNT_ORPHANED_EFFECTS)
    return int(count)
