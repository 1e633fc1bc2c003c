-- A page of a thread's checkpoints in the order of their ULIDs, with their writes. A ULID is unique per namespace only,
-- so two checkpoints may share one: WITH TIES keeps them on one page.
-- Parameters: thread_id, after (a ULID), size.
-- Columns: kind, checkpoint_ns, checkpoint_id, and by kind
--   0 (checkpoint)  parent_checkpoint_id, run_id, -, ulid, created_at, type, checkpoint, metadata_type, metadata, -
--   1 (write)       task_path, task_id, channel, -, stored_at, type, value, -, -, idx
WITH page AS MATERIALIZED (
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, ulid, created_at, type, checkpoint,
        metadata_type, metadata
    FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND ulid IS NOT NULL AND ulid > %(after)s::uuid
    ORDER BY ulid FETCH FIRST (%(size)s::int) ROWS WITH TIES
)
SELECT 0, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, NULL::text, ulid, created_at, type, checkpoint,
    metadata_type, metadata, NULL::int
FROM page
UNION ALL
SELECT 1, p.checkpoint_ns, p.checkpoint_id, w.task_path, w.task_id, w.channel, NULL,
    w.stored_at, w.type, w.value, NULL, NULL, w.idx
FROM page p CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = %(thread_id)s::text AND w.checkpoint_ns = p.checkpoint_ns
    AND w.checkpoint_id = p.checkpoint_id
    OFFSET 0
) w
