-- The checkpoint of one id in a namespace, as a listing, for {page} of page.sql.
-- Parameters: thread_id, checkpoint_ns, checkpoint_id, before, cursor_ulid, cursor_thread, cursor_ns,
-- filter, indexed_metadata, size.
-- `ulid <=` repeats what the row comparison implies, since an index on ulid can use only the former.
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
FROM (
    -- Found by its key first (OFFSET 0): a plan for a LIMIT would walk the thread in the order of ulid.
    SELECT * FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text
    AND checkpoint_id = %(checkpoint_id)s::text
    OFFSET 0
) AS one
WHERE ulid < %(before)s::uuid AND ulid <= %(cursor_ulid)s::uuid
AND (ulid, thread_id, checkpoint_ns) < (%(cursor_ulid)s::uuid, %(cursor_thread)s::text, %(cursor_ns)s::text)
AND (
    metadata_index @> %(filter)s::jsonb OR NOT metadata_index ?& %(indexed_metadata)s::text[]
    -- Damaged: the stored metadata decides.
    OR jsonb_typeof(metadata_index) <> 'object'
)
ORDER BY ulid DESC, thread_id DESC, checkpoint_ns DESC LIMIT %(size)s::int
