"""TODO."""

from __future__ import annotations

from langgraph_durable._postgres.statement import _SET_PLANNING, Statement

LOCK_THREADS_SHARED = Statement("""
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
""")

SET_FOR_BATCH = Statement("SELECT set_config('lock_timeout', %(lock_timeout)s::text, true), " + _SET_PLANNING)

LOCK_THREAD = Statement("SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))")
