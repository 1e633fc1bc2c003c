-- The checkpoints that writes name but that are not stored. Writes may arrive before their checkpoint, so the caller
-- leaves recent ones, by the time in the id.
-- Columns: thread_id, checkpoint_ns, checkpoint_id.
SELECT DISTINCT w.thread_id, w.checkpoint_ns, w.checkpoint_id FROM {schema}.writes w
WHERE NOT EXISTS (
    SELECT FROM {schema}.checkpoints c
    WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
) AND NOT EXISTS (
    SELECT FROM {schema}.ancestors a
    WHERE a.thread_id = w.thread_id AND a.checkpoint_ns = w.checkpoint_ns AND a.checkpoint_id = w.checkpoint_id
) AND NOT EXISTS (
    SELECT FROM {schema}.checkpoints c
    WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns
    AND c.parent_checkpoint_id = w.checkpoint_id AND c.format < 4
)
