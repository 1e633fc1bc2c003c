-- A page of all threads' checkpoints, newest first, for {page} of page.sql.
-- Parameters: before, cursor_ulid, cursor_thread, cursor_ns, filter, indexed_metadata, size.
-- `ulid <=` repeats what the row comparison implies, since an index on ulid can use only the former.
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
FROM {schema}.checkpoints
WHERE ulid < %(before)s::uuid AND ulid <= %(cursor_ulid)s::uuid
AND (ulid, thread_id, checkpoint_ns) < (%(cursor_ulid)s::uuid, %(cursor_thread)s::text, %(cursor_ns)s::text)
AND (
    metadata_index @> %(filter)s::jsonb OR NOT metadata_index ?& %(indexed_metadata)s::text[]
    -- Damaged: the stored metadata decides.
    OR jsonb_typeof(metadata_index) <> 'object'
)
ORDER BY ulid DESC, thread_id DESC, checkpoint_ns DESC LIMIT %(size)s::int
