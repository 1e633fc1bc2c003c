-- Some checkpoints of a thread of langgraph-checkpoint-postgres.
-- Parameters: thread, namespaces, ids. Columns: checkpoint_ns, checkpoint_id, checkpoint, metadata (as text).
SELECT c.checkpoint_ns, c.checkpoint_id, c.checkpoint::text, c.metadata::text
FROM unnest(%(namespaces)s::text[], %(ids)s::text[]) AS k (ns, id)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.checkpoints
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = k.ns AND checkpoint_id = k.id
    OFFSET 0
) AS c
