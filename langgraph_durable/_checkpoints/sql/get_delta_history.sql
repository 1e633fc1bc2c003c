-- What delta channels are replayed from at a checkpoint: the writes and seeds of its ancestors.
-- Parameters: thread, ns, id (NULL for the latest), channels.
-- Result columns: kind, checkpoint_id, then by kind
--   -1 run              -, -, its number, -, -, -, the ids of its checkpoints, newest first; as checkpoint_id one of
--                       them whose channels cannot be read, if any
--   -2 seed value       -, -, -, channel, type, data, -, segments; without type and data if the row is missing
--   -3 seed checkpoint  -, -, -, channel, type, checkpoint: the value is inside
--   -4 seed index       -, -, -, -, -, data, -, its hash, alone: an index that the seeds name
--   a run's number      task_path, task_id, idx, channel, type, value: a write. Writes of checkpoints that the run
--                       does not have are not part of the history.
--
-- The walk up the parents goes by runs, since a step for each ancestor costs ten times as much. A run starts at the
-- next parent and takes the checkpoints that come before it in the thread's order (of ULIDs; of ids among ancestors),
-- up to where one is not its predecessor's parent or has a value of a wanted channel. So a fork, or a parent above its
-- child, costs one more run. `size` is the number of rows to look at for the next run: few where runs are short.
-- `wanted` are the channels without a seed when the walk comes to a run, `remaining` those without one after it.
-- UNION, not UNION ALL: a parent chain that was damaged into a ring ends the walk instead of repeating it.
-- Where the ids of a run descend, its writes are one range. A short run's ids may descend at random and be far apart.
WITH RECURSIVE target AS (
    SELECT parent_checkpoint_id AS parent FROM {schema}.checkpoints
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = coalesce(%(id)s::text, (
        SELECT checkpoint_id FROM {schema}.checkpoints
        WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    ))
    UNION ALL
    SELECT parent_checkpoint_id FROM {schema}.ancestors
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
    LIMIT 1
), walk (ids, parent, value_channels, value_versions, size, wanted, remaining, damaged) AS (
    SELECT '{}'::text[] COLLATE "C", target.parent, '{}'::text[] COLLATE "C", '{}'::text[] COLLATE "C", 32,
        %(channels)s::text[] COLLATE "C", %(channels)s::text[] COLLATE "C", NULL::text[] COLLATE "C"
    FROM target
    UNION
    SELECT r.ids[:c.cut], r.parents[c.cut], coalesce(v.value_channels, '{}'), coalesce(v.value_versions, '{}'),
        least(2 * c.cut, 256), w.remaining,
        array(SELECT r FROM unnest(w.remaining) AS r WHERE r <> ALL (coalesce(v.value_channels, '{}'))), r.damaged
    FROM walk w LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = w.parent
        LIMIT 1
    ) p ON true CROSS JOIN LATERAL (
        SELECT array_agg(checkpoint_id) AS ids, array_agg(parent_checkpoint_id) AS parents, count(*)::int AS n,
            array_position(array_agg(value_channels && w.remaining), true) AS seeding,
            array_agg(checkpoint_id) FILTER (
                WHERE num_nulls(VARIADIC value_channels) > 0
                OR cardinality(value_channels) <> cardinality(value_versions)
                OR array_ndims(value_channels) > 1 OR array_ndims(value_versions) > 1
            ) AS damaged
        FROM (
            (
                SELECT checkpoint_id, parent_checkpoint_id, value_channels, value_versions FROM {schema}.checkpoints
                WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text
                AND ulid IS NOT NULL AND ulid <= p.ulid
                ORDER BY ulid DESC LIMIT w.size
            )
            UNION ALL
            (
                SELECT checkpoint_id, parent_checkpoint_id, value_channels, value_versions FROM {schema}.ancestors a
                WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text
                AND checkpoint_id <= w.parent AND p.ulid IS NULL
                AND (
                    SELECT 1 FROM {schema}.checkpoints c
                    WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = %(ns)s::text
                    AND c.checkpoint_id = a.checkpoint_id
                ) IS NULL
                ORDER BY checkpoint_id DESC LIMIT w.size
            )
        ) AS looked_at
    ) r CROSS JOIN LATERAL (
        SELECT least(r.seeding, CASE WHEN r.parents[:r.n - 1] = r.ids[2:] THEN r.n ELSE (
            SELECT min(l.n)::int FROM unnest(r.parents, r.ids[2:]) WITH ORDINALITY AS l (parent, next, n)
            WHERE l.parent IS DISTINCT FROM l.next
        ) END) AS cut
        OFFSET 0
    ) c LEFT JOIN LATERAL (
        SELECT value_channels, value_versions FROM {schema}.checkpoints
        WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = r.ids[c.cut]
        UNION ALL
        SELECT value_channels, value_versions FROM {schema}.ancestors
        WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = r.ids[c.cut]
        LIMIT 1
    ) v ON c.cut = r.seeding
    WHERE w.remaining <> '{}' AND r.ids[1] = w.parent
), run AS MATERIALIZED (
    SELECT row_number() OVER ()::int AS n, ids, value_channels, value_versions, wanted,
        (SELECT i FROM unnest(damaged) AS i WHERE i = ANY (ids) LIMIT 1) AS damaged,
        cardinality(ids) >= 8 AND ids = array(SELECT i FROM unnest(ids) AS i ORDER BY i DESC) AS descending
    FROM walk
), seed AS (
    SELECT r.ids[cardinality(r.ids)] AS checkpoint_id, v.channel, v.version
    FROM run r CROSS JOIN unnest(r.value_channels, r.value_versions) AS v (channel, version)
    WHERE v.channel = ANY (r.wanted)
), seed_value AS MATERIALIZED (
    SELECT s.checkpoint_id, s.channel, v.type, v.data, v.segments
    FROM seed s LEFT JOIN LATERAL (
        SELECT v.type, v.data, v.segments FROM {schema}.channel_values v
        WHERE v.thread_id = %(thread)s::text AND v.checkpoint_ns = %(ns)s::text
        AND v.channel = s.channel AND v.version = s.version
        LIMIT 1
    ) v ON true
    WHERE s.version IS NOT NULL
)
SELECT -1, damaged, NULL::text, NULL::text, n, NULL::text, NULL::text, NULL::bytea, ids, NULL::bytea[] FROM run
UNION ALL
SELECT r.n, x.checkpoint_id, x.task_path, x.task_id, x.idx, x.channel, x.type, x.value, NULL, NULL
FROM run r CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes x
    WHERE x.thread_id = %(thread)s::text AND x.checkpoint_ns = %(ns)s::text
    AND x.checkpoint_id BETWEEN r.ids[cardinality(r.ids)] AND r.ids[1] AND x.channel = ANY (r.wanted)
    OFFSET 0
) x
WHERE r.descending
UNION ALL
SELECT r.n, x.checkpoint_id, x.task_path, x.task_id, x.idx, x.channel, x.type, x.value, NULL, NULL
FROM run r CROSS JOIN unnest(r.ids) AS i (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes x
    WHERE x.thread_id = %(thread)s::text AND x.checkpoint_ns = %(ns)s::text
    AND x.checkpoint_id = i.id AND x.channel = ANY (r.wanted)
    OFFSET 0
) x
WHERE NOT r.descending
UNION ALL
SELECT -2, checkpoint_id, NULL, NULL, NULL, channel, type, data, NULL, segments FROM seed_value
UNION ALL
SELECT -4, NULL, NULL, NULL, NULL, NULL, NULL, s.data, NULL, ARRAY[i.hash]
FROM (
    SELECT DISTINCT hash FROM seed_value CROSS JOIN unnest(segments) AS hash
    WHERE segments IS NOT NULL AND substr(hash, 1, 1) IN ('\x01', '\x03')
) i CROSS JOIN LATERAL (
    SELECT s.data FROM {schema}.segments s WHERE s.thread_id = %(thread)s::text AND s.hash = i.hash LIMIT 1
) s
UNION ALL
SELECT -3, s.checkpoint_id, NULL, NULL, NULL, s.channel, c.type, c.checkpoint, NULL, NULL
FROM seed s CROSS JOIN LATERAL (
    SELECT type, checkpoint FROM {schema}.checkpoints
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = s.checkpoint_id
    UNION ALL
    SELECT type, checkpoint FROM {schema}.ancestors
    WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = s.checkpoint_id
    LIMIT 1
) c
WHERE s.version IS NULL
