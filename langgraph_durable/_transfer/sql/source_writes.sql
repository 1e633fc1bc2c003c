-- The writes of some checkpoints of a thread of langgraph-checkpoint-postgres.
-- Tables of early releases have no task_path. The name is then that of the outer query, which is empty.
-- Parameters: thread, namespaces, ids.
-- Columns: checkpoint_ns, checkpoint_id, task_path, task_id, idx, channel, type, blob.
SELECT w.*
FROM (SELECT ''::text AS task_path) AS absent
CROSS JOIN unnest(%(namespaces)s::text[], %(ids)s::text[]) AS k (ns, id)
CROSS JOIN LATERAL (
    SELECT o.checkpoint_ns, o.checkpoint_id, task_path, o.task_id, o.idx, o.channel, o.type, o.blob
    FROM {schema}.checkpoint_writes o
    WHERE o.thread_id = %(thread)s::text AND o.checkpoint_ns = k.ns AND o.checkpoint_id = k.id
    OFFSET 0
) AS w
ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx
