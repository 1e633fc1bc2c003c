"""Retention of finished effects: their payloads expire, the fact that they happened stays."""

from __future__ import annotations

from datetime import timedelta

from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import Statement

EXPIRE = Statement("""
WITH large AS (
    DELETE FROM {schema}.effect_results r USING {schema}.effects e
    WHERE r.effect_id = e.effect_id AND e.state IN ('completed', 'failed', 'abandoned')
    AND e.ended_at < now() - %(older_than)s::interval
), expired AS (
    UPDATE {schema}.effects SET input_type = NULL, input = NULL, result = NULL, error = NULL, expired_at = now()
    WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
    AND expired_at IS NULL
    RETURNING effect_id
), events AS (
    UPDATE {schema}.effect_events SET reason = NULL
    WHERE reason IS NOT NULL AND effect_id IN (SELECT effect_id FROM expired)
)
SELECT effect_id FROM expired
""")

COUNT_EXPIRABLE = Statement("""
SELECT count(*) FROM {schema}.effects
WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
AND expired_at IS NULL
""")

# Effects that need a decision and whose thread is gone: no run will come back to them.
COUNT_ORPHANS = Statement("""
SELECT count(*) FROM {schema}.effects e
WHERE e.thread_id IS NOT NULL AND (e.state = 'unknown' OR e.state = 'issued' AND e.lease_until < now())
AND NOT EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = e.thread_id)
""")


async def expire_effects(db: Database, older_than: timedelta, *, dry_run: bool) -> int:
    """Drop the arguments and results of effects that ended longer ago; tell how many those are."""
    params = {"older_than": older_than}
    if dry_run:
        [(count,)] = await db.fetch(COUNT_EXPIRABLE, params)
        return int(count)
    return len(await db.fetch(EXPIRE, params))


async def count_orphans(db: Database) -> int:
    """Count the effects that need a decision and whose thread is gone."""
    [(count,)] = await db.fetch(COUNT_ORPHANS)
    return int(count)
