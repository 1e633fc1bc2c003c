-- What pruning needs to know of a thread's checkpoints and ancestors.
-- Parameters: thread.
-- Columns: checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions; ulid, created_at,
-- root_checkpoint_id, run_id (NULL for ancestors); format; delta_channels; is_fork (made by an update or a fork in the
-- root graph); is_indexed (whether metadata_index is an object).
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, ulid, created_at,
    root_checkpoint_id, run_id, format, delta_channels,
    checkpoint_ns = '' AND metadata_index ->> 'source' IN ('update', 'fork'), jsonb_typeof(metadata_index) = 'object'
FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
UNION ALL
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, NULL, NULL,
    NULL, NULL, 4, NULL, false, true
FROM {schema}.ancestors WHERE thread_id = %(thread)s::text
