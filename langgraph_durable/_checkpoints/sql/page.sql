-- The checkpoints that {page} selects, with their values and writes. One statement, so one snapshot: no prune can come
-- between a checkpoint and what it names.
-- {page} is one of the sources (get_*.sql, list_*.sql); the parameters are its own.
-- Result columns: kind, thread_id, checkpoint_ns, then by kind
--   0 checkpoint  checkpoint_id, parent_checkpoint_id, -, -, type, checkpoint, metadata_type, metadata, ulid,
--                 value_channels, value_versions; an ancestor has no metadata, and perhaps no checkpoint
--   1 value       channel, version, -, -, type, data, -, -, -, -, -, -, segments
--   2 write       checkpoint_id, task_path, task_id, channel, type, value, -, -, -, -, -, idx
--   3 send        as a write: a pending send of the parent of a checkpoint of format below 4
--   4 index       -, -, -, -, -, data, -, hash: an index that the values name (first byte of its hash 1 or 3)
-- Values are looked up by LATERALs with a LIMIT or OFFSET, not by joins. A join is planned from estimates of rows per
-- thread, which are worst for the few huge threads that matter.
WITH page AS MATERIALIZED ({page}), value AS MATERIALIZED (
    SELECT n.thread_id, n.checkpoint_ns, n.channel, n.version, v.type, v.data, v.segments
    FROM (
        SELECT DISTINCT p.thread_id, p.checkpoint_ns, n.channel, n.version
        FROM page p CROSS JOIN unnest(p.value_channels, p.value_versions) AS n (channel, version)
        WHERE n.version IS NOT NULL
    ) n CROSS JOIN LATERAL (
        SELECT v.type, v.data, v.segments FROM {schema}.channel_values v
        WHERE v.thread_id = n.thread_id AND v.checkpoint_ns = n.checkpoint_ns
        AND v.channel = n.channel AND v.version = n.version
        LIMIT 1
    ) v
)
SELECT 0, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, NULL::text, NULL::text, type, checkpoint,
    metadata_type, metadata, ulid, value_channels, value_versions, NULL::int, NULL::bytea[]
FROM page
UNION ALL
SELECT 1, thread_id, checkpoint_ns, channel, version, NULL, NULL, type, data,
    NULL, NULL, NULL, NULL, NULL, NULL, segments
FROM value
UNION ALL
SELECT 4, i.thread_id, NULL, NULL, NULL, NULL, NULL, NULL, s.data, NULL, i.hash, NULL, NULL, NULL, NULL, NULL
FROM (
    SELECT DISTINCT thread_id, hash FROM value CROSS JOIN unnest(segments) AS hash
    WHERE segments IS NOT NULL AND substr(hash, 1, 1) IN ('\x01', '\x03')
) i CROSS JOIN LATERAL (
    SELECT s.data FROM {schema}.segments s WHERE s.thread_id = i.thread_id AND s.hash = i.hash LIMIT 1
) s
UNION ALL
SELECT 2, p.thread_id, p.checkpoint_ns, p.checkpoint_id, w.task_path, w.task_id, w.channel, w.type, w.value,
    NULL, NULL, NULL, NULL, NULL, w.idx, NULL
FROM page p CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = p.thread_id AND w.checkpoint_ns = p.checkpoint_ns AND w.checkpoint_id = p.checkpoint_id
    OFFSET 0
) w
UNION ALL
SELECT 3, p.thread_id, p.checkpoint_ns, p.checkpoint_id, w.task_path, w.task_id, w.channel, w.type, w.value,
    NULL, NULL, NULL, NULL, NULL, w.idx, NULL
FROM page p CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = p.thread_id AND w.checkpoint_ns = p.checkpoint_ns
    AND w.checkpoint_id = p.parent_checkpoint_id AND w.channel = '__pregel_tasks'
    OFFSET 0
) w
WHERE p.format < 4
