-- What is known of a thread: whether it has rows here, and whether it was deleted here.
-- Parameters: thread. Columns: has_rows, deleted.
SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text)
        OR EXISTS (SELECT FROM {schema}.writes WHERE thread_id = %(thread)s::text),
    EXISTS (SELECT FROM {schema}.tombstones WHERE thread_id = %(thread)s::text)
