-- langgraph_durable 0006: the hot statements as functions.
--
--   put_checkpoints_v1  stores checkpoints, one or many, of one thread or several.
--   get_checkpoint_v1   fetches one checkpoint with its values and writes.
--
-- A function's plans belong to the server's connection. They are kept even where the client cannot keep prepared
-- statements, as behind pgbouncer in transaction mode: planning a put takes several times as long as running it. Each
-- function sets how it is planned, so clients need no startup options.
--
-- A function is never edited: a later migration adds one of the next version. Functions run with their caller's
-- privileges. EXECUTE is granted to PUBLIC, as usual; what a role may do is decided by its privileges on the tables and
-- on the schema. The bodies name the schema. So when a schema was renamed, `setup` runs this migration again.

-- Store checkpoints, each with the channel values and segments that it sends.
--
--   sent_rows   a JSON array of objects, one per checkpoint, with the columns of `given` below
--   sent_bases  of each row, the place in sent_bytes where its bytes begin
--   sent_bytes  the bytes of all rows: a row's columns that end in _at or _ats are places counted from its base
--
-- Result: number of the row, verdict, and what was found to be missing: channels, hashes of segments. Only rows with
-- the verdict `stored` are stored.
--
-- The threads' locks are taken first, shared, until the transaction ends, in the order of the rows. Each statement in a
-- volatile function takes a new snapshot, so the one that stores sees what a prune committed that held a lock before.
CREATE OR REPLACE FUNCTION {schema}.put_checkpoints_v1(sent_rows json, sent_bases int[], sent_bytes bytea)
RETURNS TABLE (number bigint, verdict text, missing text[], lacking bytea[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $put_checkpoints_v1$
#variable_conflict use_column
BEGIN

PERFORM pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || (sent ->> 'thread'), 0))
FROM json_array_elements(sent_rows) AS sent;

-- A put may name values that it does not send. They are looked up by scalar subqueries, and other rows by LATERALs with
-- a LIMIT or OFFSET, not by joins. A join is planned from estimates of rows per thread, which are worst for the few
-- huge threads that matter.
RETURN QUERY
WITH given AS MATERIALIZED (
    SELECT g.*, g.unnest AS base, g.ordinality AS number
    FROM ROWS FROM (
        json_to_recordset(sent_rows) AS (
            thread text, ns text, id text, derived_ulid uuid, parent text, root text, run_id text, format int,
            type text, checkpoint_size int, metadata_type text, metadata_size int, metadata_index text,
            value_channels text[], value_versions text[], delta_channels text[], unmentioned_channels text[],
            unmentioned_versions text[], channels text[], versions text[], types text[], hashes_at int, needed_at int,
            needed int, data_ats int[], data_sizes int[], entries_ats int[], entries_sizes int[], segment_ats int[],
            segment_sizes int[]
        ),
        unnest(sent_bases)
    ) WITH ORDINALITY AS g
),

-- Adds the parent's channels, or those of the ancestor it left when it was pruned. An ancestor has no list of its delta
-- channels, but only seeds and writes of delta channels.
parented AS (
    SELECT g.*, parent.channels IS NOT NULL AS parent_is_stored,
        parent.channels AS parent_channels, parent.versions AS parent_versions, parent.deltas AS parent_deltas
    FROM given g
    LEFT JOIN LATERAL (
        SELECT value_channels AS channels, value_versions AS versions, delta_channels AS deltas
        FROM {schema}.checkpoints
        WHERE thread_id = g.thread AND checkpoint_ns = g.ns AND checkpoint_id = g.parent
        UNION ALL
        SELECT value_channels, value_versions, array(
            SELECT channel FROM {schema}.ancestors a CROSS JOIN unnest(a.value_channels) AS channel
            WHERE a.thread_id = g.thread AND a.checkpoint_ns = g.ns
            UNION
            SELECT w.channel FROM {schema}.ancestors a
            JOIN {schema}.writes w USING (thread_id, checkpoint_ns, checkpoint_id)
            WHERE thread_id = g.thread AND checkpoint_ns = g.ns AND w.channel <> '__pregel_tasks'
        ) FROM {schema}.ancestors
        WHERE thread_id = g.thread AND checkpoint_ns = g.ns AND checkpoint_id = g.parent
        LIMIT 1
    ) AS parent ON true
),

-- Adds what the parent has of the channels for which the put has neither a value nor a new version: channels that this
-- graph does not know, and delta channels whose snapshot is still the parent's. (Replayed from the parent, the latter
-- would change whenever another branch writes there.) `inside` are those whose value is inside the parent.
inherited AS (
    SELECT p.*, i.channels AS inherited_channels, i.versions AS inherited_versions, i.deltas AS inherited_deltas,
        i.inside
    FROM parented p
    CROSS JOIN LATERAL (
        SELECT array_agg(u.channel) FILTER (WHERE v.version IS NOT NULL) AS channels,
            array_agg(v.version) FILTER (WHERE v.version IS NOT NULL) AS versions,
            array_agg(u.channel) FILTER (WHERE v.channel IS NULL AND u.channel <> ALL (p.delta_channels)) AS deltas,
            array_agg(u.channel) FILTER (WHERE v.channel IS NOT NULL AND v.version IS NULL) AS inside
        FROM unnest(p.unmentioned_channels, p.unmentioned_versions) AS u (channel, version)
        LEFT JOIN unnest(p.parent_channels, p.parent_versions) AS v (channel, version) USING (channel)
        WHERE CASE WHEN v.channel IS NULL THEN u.channel = ANY (p.parent_deltas)
            ELSE coalesce(v.version = u.version, true) END
    ) AS i
),

-- Adds the values and segments that the put names, does not send, and that are not stored; the ULID of the namespace's
-- head; and the ULID of the root graph's checkpoint that a subgraph's call started from.
-- What a stored index or value names is stored, so only what the put itself names is looked up.
-- MATERIALIZED, since the planner takes 15 % longer if it folds these steps into the next one.
looked_up AS MATERIALIZED (
    SELECT i.*, found.absent, found.lacking, head.ulid AS head_ulid, root.ulid AS root_ulid
    FROM inherited i
    CROSS JOIN LATERAL (
        SELECT array(
            SELECT n.channel FROM unnest(i.value_channels, i.value_versions) AS n (channel, version)
            WHERE n.version IS NOT NULL AND n.channel <> ALL (i.channels) AND (
                SELECT 1 FROM {schema}.channel_values v
                WHERE v.thread_id = i.thread AND v.checkpoint_ns = i.ns
                AND v.channel = n.channel AND v.version = n.version
            ) IS NULL
        ) AS absent, array(
            SELECT n.hash FROM generate_series(0, i.needed - 1) AS k
            CROSS JOIN LATERAL (SELECT substr(sent_bytes, i.base + i.needed_at + 20 * k + 1, 20)) AS n (hash)
            WHERE (
                SELECT 1 FROM {schema}.segments s WHERE s.thread_id = i.thread AND s.hash = n.hash
            ) IS NULL
        ) AS lacking
        OFFSET 0
    ) AS found
    LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = i.thread AND checkpoint_ns = i.ns AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    ) AS head ON true
    LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = i.thread AND checkpoint_ns = '' AND checkpoint_id = i.root
        LIMIT 1
    ) AS root ON true
),

-- Adds the verdict (Verdict in put.py names them) and the ULID.
-- A delta channel that is replayed needs the parent: a put whose parent is not stored is refused, since all that came
-- before would be lost.
-- The ULID is what the id holds, or the server's clock. If that does not come after what came before the checkpoint, a
-- clock is off, and the ULID is the successor of the thread's last. What came before is: the head of the namespace, if
-- the parent is stored or the id holds no time (two such ids may come within a millisecond); and the root's checkpoint,
-- since the runtime asks for a subgraph's checkpoints before one of the root's.
-- The successor is the number plus one, computed on the lower 64 bits: those of a ULID made here are never all ones.
judged AS MATERIALIZED (
    SELECT l.*, CASE WHEN absent <> '{{}}' THEN absent ELSE inside END AS missing, CASE
            WHEN absent <> '{{}}' THEN 'values missing'
            WHEN lacking <> '{{}}' THEN 'segments missing'
            WHEN inside IS NOT NULL THEN 'values in parent'
            WHEN parent_is_stored OR l.parent IS NULL THEN 'stored'
            WHEN (SELECT 1 FROM {schema}.tombstones WHERE thread_id = l.thread) IS NOT NULL THEN 'thread deleted'
            WHEN l.delta_channels = '{{}}' THEN 'stored'
            WHEN (SELECT 1 FROM {schema}.prunes WHERE thread_id = l.thread) IS NOT NULL THEN 'parent pruned'
            ELSE 'parent missing'
        END AS verdict,
        CASE
            WHEN (parent_is_stored OR derived_ulid IS NULL) AND head_ulid >= own.ulid OR root_ulid >= own.ulid
            OR NOT parent_is_stored AND (
                SELECT 1 FROM {schema}.checkpoints c
                WHERE c.thread_id = l.thread AND c.checkpoint_ns = l.ns AND c.ulid = own.ulid
            ) IS NOT NULL
            THEN (
                SELECT (left(hex, 16) || lpad(to_hex(('x' || right(hex, 16))::bit(64)::bigint + 1), 16, '0'))::uuid
                FROM (
                    SELECT replace(ulid::text, '-', '') AS hex FROM {schema}.checkpoints
                    WHERE thread_id = l.thread AND ulid IS NOT NULL
                    ORDER BY ulid DESC LIMIT 1
                ) AS last
            )
            ELSE own.ulid
        END AS ulid
    FROM looked_up l
    CROSS JOIN LATERAL (
        SELECT coalesce(l.derived_ulid, (
            lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 20)
        )::uuid) AS ulid
        OFFSET 0
    ) AS own
),

new_segments AS (
    INSERT INTO {schema}.segments (thread_id, hash, data)
    SELECT j.thread,
        substr(sent_bytes, j.base + j.hashes_at + 20 * (s.number - 1)::int + 1, 20),
        substr(sent_bytes, j.base + s.at + 1, s.size)
    FROM judged j CROSS JOIN LATERAL unnest(j.segment_ats, j.segment_sizes) WITH ORDINALITY AS s (at, size, number)
    WHERE verdict = 'stored'
    ON CONFLICT DO NOTHING
),

new_values AS (
    INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, data, segments)
    SELECT j.thread, j.ns, v.channel, v.version, v.type, substr(sent_bytes, j.base + v.at + 1, v.size),
        CASE WHEN v.entries_at IS NOT NULL THEN array(
            SELECT substr(sent_bytes, j.base + v.entries_at + i + 1, 20)
            FROM generate_series(0, v.entries_size - 20, 20) AS i ORDER BY i
        ) END
    FROM judged j CROSS JOIN LATERAL unnest(
        j.channels, j.versions, j.types, j.data_ats, j.data_sizes, j.entries_ats, j.entries_sizes
    ) AS v (channel, version, type, at, size, entries_at, entries_size)
    WHERE verdict = 'stored'
    ON CONFLICT DO NOTHING
),

-- A put without a parent starts a deleted thread afresh.
revived AS (
    DELETE FROM {schema}.tombstones
    WHERE thread_id = ANY (array(SELECT thread FROM given WHERE ns = '' AND parent IS NULL))
),

-- A second put of an id keeps its ULID and its parent.
stored AS (
    INSERT INTO {schema}.checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, ulid, parent_checkpoint_id, root_checkpoint_id, run_id, format,
        type, checkpoint, metadata_type, metadata, metadata_index, value_channels, value_versions, delta_channels
    )
    SELECT
        thread, ns, id, ulid, nullif(parent, id), root, run_id, format,
        type, substr(sent_bytes, base + 1, checkpoint_size),
        metadata_type, substr(sent_bytes, base + checkpoint_size + 1, metadata_size), metadata_index::jsonb,
        value_channels || inherited_channels, value_versions || inherited_versions,
        nullif(array(
            SELECT d FROM unnest(delta_channels) AS d WHERE d <> ALL (coalesce(inherited_channels, '{{}}'))
        ) || inherited_deltas, '{{}}')
    FROM judged WHERE verdict = 'stored'
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
        run_id = excluded.run_id, format = excluded.format,
        type = excluded.type, checkpoint = excluded.checkpoint,
        metadata_type = excluded.metadata_type, metadata = excluded.metadata,
        metadata_index = excluded.metadata_index,
        value_channels = excluded.value_channels, value_versions = excluded.value_versions,
        delta_channels = excluded.delta_channels
)
SELECT number, verdict, missing, lacking FROM judged;

END
$put_checkpoints_v1$;

-- Fetch one checkpoint with its values and writes: the one that is named, or, if named_id is NULL, the namespace's
-- latest. If the named one was pruned, and or_ancestor is true, fetch the ancestor that it left. LangGraph's own walk
-- to a delta channel's history reads ancestors. A checkpoint that was put again comes before the ancestor it left. An
-- ancestor is of the newest format and has no place in any order.
--
-- Result: the rows of a page, see page.sql. The function is stable, so all of it is from its caller's one snapshot.
CREATE OR REPLACE FUNCTION {schema}.get_checkpoint_v1(
    named_thread text, named_ns text, named_id text, or_ancestor boolean
)
RETURNS TABLE (
    kind int, thread_id text, checkpoint_ns text, first text, second text, third text, fourth text,
    type text, data bytea, metadata_type text, metadata bytea, ulid uuid,
    value_channels text[], value_versions text[], idx int, segments bytea[]
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $get_checkpoint_v1$
#variable_conflict use_column
BEGIN

RETURN QUERY
WITH found AS MATERIALIZED (
    (
        SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
            metadata_type, metadata, value_channels, value_versions
        FROM {schema}.checkpoints
        WHERE named_id IS NULL AND thread_id = named_thread AND checkpoint_ns = named_ns AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    )
    UNION ALL
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
        metadata_type, metadata, value_channels, value_versions
    FROM {schema}.checkpoints
    WHERE thread_id = named_thread AND checkpoint_ns = named_ns AND checkpoint_id = named_id
    UNION ALL
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, lpad('', 32, '0')::uuid, 4, type, checkpoint,
        NULL, NULL, value_channels, value_versions
    FROM {schema}.ancestors
    WHERE or_ancestor AND thread_id = named_thread AND checkpoint_ns = named_ns AND checkpoint_id = named_id
    LIMIT 1
),

value AS MATERIALIZED (
    SELECT n.channel, n.version, v.type, v.data, v.segments
    FROM found f
    CROSS JOIN LATERAL unnest(f.value_channels, f.value_versions) AS n (channel, version)
    CROSS JOIN LATERAL (
        SELECT v.type, v.data, v.segments FROM {schema}.channel_values v
        WHERE v.thread_id = named_thread AND v.checkpoint_ns = named_ns
        AND v.channel = n.channel AND v.version = n.version
        LIMIT 1
    ) AS v
)

SELECT 0, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, NULL::text, NULL::text, type, checkpoint,
    metadata_type, metadata, ulid, value_channels, value_versions, NULL::int, NULL::bytea[]
FROM found
UNION ALL
SELECT 1, named_thread, named_ns, channel, version, NULL, NULL, type, data, NULL, NULL, NULL, NULL, NULL, NULL, segments
FROM value
UNION ALL
SELECT 4, named_thread, NULL, NULL, NULL, NULL, NULL, NULL, s.data, NULL, i.hash, NULL, NULL, NULL, NULL, NULL
FROM (
    SELECT DISTINCT hash FROM value CROSS JOIN unnest(segments) AS hash
    WHERE segments IS NOT NULL AND substr(hash, 1, 1) IN ('\x01', '\x03')
) AS i CROSS JOIN LATERAL (
    SELECT s.data FROM {schema}.segments s WHERE s.thread_id = named_thread AND s.hash = i.hash LIMIT 1
) AS s
UNION ALL
SELECT 2, named_thread, named_ns, f.checkpoint_id, w.task_path, w.task_id, w.channel, w.type, w.value,
    NULL, NULL, NULL, NULL, NULL, w.idx, NULL
FROM found f CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = named_thread AND w.checkpoint_ns = named_ns AND w.checkpoint_id = f.checkpoint_id
    OFFSET 0
) AS w
UNION ALL
SELECT 3, named_thread, named_ns, f.checkpoint_id, w.task_path, w.task_id, w.channel, w.type, w.value,
    NULL, NULL, NULL, NULL, NULL, w.idx, NULL
FROM found f CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = named_thread AND w.checkpoint_ns = named_ns
    AND w.checkpoint_id = f.parent_checkpoint_id AND w.channel = '__pregel_tasks'
    OFFSET 0
) AS w
WHERE f.format < 4;

END
$get_checkpoint_v1$;
