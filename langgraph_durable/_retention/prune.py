"""Pruning threads that the caller names."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._retention.delete import remove_thread
from langgraph_durable._retention.policy import Policy
from langgraph_durable._retention.removal import keep_newest, remove_each, remove_from_threads
from langgraph_durable._validation import require_ids
from langgraph_durable.reports import PruneReport, Removed


@measured("prune")
async def prune(
    db: Database, codec: Codec, thread_ids: Sequence[str], policy: Policy, *, dry_run: bool
) -> PruneReport:
    """Delete old checkpoints of threads; see DurableSaver.prune."""
    wanted = require_ids(thread_ids, "thread_ids")
    if policy.keep_last > 0:
        choose = keep_newest(policy.keep_last, policy.older_than)
        return await remove_from_threads(db, codec, wanted, choose, dry_run=dry_run)

    async def remove(thread_id: str) -> Removed:
        return await remove_thread(db, thread_id, dry_run=dry_run)

    return await remove_each(wanted, remove, dry_run=dry_run)
