-- One checkpoint by its id, or the ancestor that it left when it was pruned, for {page} of page.sql.
-- LangGraph's own walk to a delta channel's history reads ancestors. A checkpoint that was put again comes before the
-- ancestor it left. An ancestor is of the newest format and has no place in any order.
-- Parameters: thread, ns, id.
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
FROM (
    SELECT
        thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
    FROM {schema}.checkpoints
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
    UNION ALL
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, lpad('', 32, '0')::uuid, 4, type, checkpoint,
        NULL, NULL, value_channels, value_versions
    FROM {schema}.ancestors
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
    LIMIT 1
) AS one
