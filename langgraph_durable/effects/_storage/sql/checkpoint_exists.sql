-- Return whether a checkpoint is stored.
--
-- Parameters: thread_id, checkpoint_ns, checkpoint_id. Columns: exists.
SELECT EXISTS (
    SELECT FROM {schema}.checkpoints
    WHERE thread_id = %s::text AND checkpoint_ns = %s::text AND checkpoint_id = %s::text
)
