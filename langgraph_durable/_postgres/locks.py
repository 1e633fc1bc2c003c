"""Advisory locks of threads, and the settings that go with them in one statement.

Locks are transaction-scoped, so that they hold behind pgbouncer in transaction mode and end with their transaction.
"""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._postgres.statement import Statement

# The startup options of our own connections set the same, but a pooler may refuse or drop them. NULL leaves a setting
# as it is. A batch needs it most: the planner overestimates its rows, so it would compile the statement, and plan it
# anew each time.
_SET_PLANNING: LiteralString = """set_config('jit', coalesce(%(jit)s::text, current_setting('jit')), true),
    set_config('plan_cache_mode', coalesce(%(plan_cache_mode)s::text, current_setting('plan_cache_mode')), true)
"""

LOCK_THREAD_SHARED_AND_SET_PLANNING = Statement(
    "SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || %(thread)s::text, 0)), "
    + _SET_PLANNING
)

LOCK_THREADS_SHARED = Statement("""
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
""")

LOCK_THREAD = Statement("SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))")

SET_FOR_BATCH = Statement("SELECT set_config('lock_timeout', %(lock_timeout)s::text, true), " + _SET_PLANNING)
