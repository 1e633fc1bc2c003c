-- The channel values of a thread of ShallowPostgresSaver.
-- Parameters: thread. Columns: checkpoint_ns, channel, type, blob.
SELECT checkpoint_ns, channel, type, blob FROM {schema}.checkpoint_blobs WHERE thread_id = %(thread)s::text
