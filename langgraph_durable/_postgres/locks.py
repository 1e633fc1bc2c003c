"""Advisory locks of threads, and settings that are sent in the same statement.

Both end with the transaction, so they are safe behind pgbouncer in transaction mode.
"""

from __future__ import annotations

from langgraph_durable._postgres.statement import load

# The startup options of our connections set the planning too, but a pooler may refuse or drop them. A batch needs
# it most: the planner overestimates its rows, so it would JIT-compile the statement, and plan it at each execution.
SET_FOR_BATCH = load(__package__, "set_for_batch")

LOCK_THREADS_SHARED = load(__package__, "lock_threads_shared")
LOCK_THREAD = load(__package__, "lock_thread")
