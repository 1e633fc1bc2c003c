"""TODO."""

from __future__ import annotations

from langgraph_durable._postgres.statement import Statement

LOCK_THREADS_SHARED = Statement("""
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
""")

# For a batch, whose rows the planner takes for so many that it would compile the statement, and plan it anew each time.
SET_FOR_BATCH = Statement("""
SELECT set_config('lock_timeout', %s::text, true), set_config('jit', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true)
""")

LOCK_THREAD = Statement("SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))")
