-- The ULID of a checkpoint.
-- Parameters: thread_id, checkpoint_ns (NULL for any namespace), checkpoint_id. Result columns: ulid.
SELECT ulid FROM {schema}.checkpoints
WHERE thread_id = %(thread_id)s::text AND checkpoint_id = %(checkpoint_id)s::text
AND (%(checkpoint_ns)s::text IS NULL OR checkpoint_ns = %(checkpoint_ns)s::text)
ORDER BY ulid DESC LIMIT 1
