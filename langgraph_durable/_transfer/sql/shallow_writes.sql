-- The writes of a thread of ShallowPostgresSaver. Tables of early releases have no task_path; see source_writes.sql.
-- Parameters: thread. Columns: checkpoint_ns, checkpoint_id, task_path, task_id, idx, channel, type, blob.
SELECT w.*
FROM (SELECT ''::text AS task_path) AS absent
CROSS JOIN LATERAL (
    SELECT o.checkpoint_ns, o.checkpoint_id, task_path, o.task_id, o.idx, o.channel, o.type, o.blob
    FROM {schema}.checkpoint_writes o
    WHERE o.thread_id = %(thread)s::text
    OFFSET 0
) AS w
ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx
