-- One checkpoint by its id, for {page} of page.sql.
-- Parameters: thread, ns, id.
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
FROM {schema}.checkpoints
WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
