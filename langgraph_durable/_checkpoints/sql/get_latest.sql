-- The latest checkpoint of a namespace, for {page} of page.sql.
-- Parameters, in order: thread_id, checkpoint_ns.
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
FROM {schema}.checkpoints
WHERE thread_id = %s::text AND checkpoint_ns = %s::text AND ulid IS NOT NULL
ORDER BY ulid DESC LIMIT 1
