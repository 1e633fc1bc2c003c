-- Some channel values of a thread of langgraph-checkpoint-postgres.
-- Parameters: thread, namespaces, channels, versions. Columns: checkpoint_ns, channel, version, type, blob.
SELECT b.checkpoint_ns, b.channel, b.version, b.type, b.blob
FROM unnest(%(namespaces)s::text[], %(channels)s::text[], %(versions)s::text[]) AS k (ns, channel, version)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.checkpoint_blobs
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = k.ns AND channel = k.channel AND version = k.version
    OFFSET 0
) AS b
