-- The checkpoints of a thread of ShallowPostgresSaver, which keeps one in each namespace.
-- Parameters: thread. Columns: checkpoint_ns, checkpoint, metadata (as text).
SELECT checkpoint_ns, checkpoint::text, metadata::text FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
