"""The statements that prune, erase and copy threads, all under their exclusive lock, and those that sweep."""

from __future__ import annotations

from langgraph_durable._put_statements import SENT, SENT_COLUMNS
from langgraph_durable._statements import RowsStatement, Statement

NOW = Statement("SELECT now()")

LIST_NODES = Statement("""
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, ulid, created_at,
    root_checkpoint_id, run_id, format, delta_channels,
    checkpoint_ns = '' AND metadata_index ->> 'source' IN ('update', 'fork'), jsonb_typeof(metadata_index) = 'object'
FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
UNION ALL
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, NULL, NULL,
    NULL, NULL, 4, NULL, false, true
FROM {schema}.ancestors WHERE thread_id = %(thread)s::text
""")

# Parameters of the statements that remove: parallel arrays of namespaces and ids (and channels or versions).
# `IS TRUE` keeps a condition from becoming a join, which is planned for the few rows that the planner takes a thread
# for, and looks at each row for each key: so it is a look into a table of hashes.

LEAVE_ANCESTORS = Statement("""
INSERT INTO {schema}.ancestors
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id,
    CASE WHEN s.inside THEN c.type END, CASE WHEN s.inside THEN c.checkpoint END, s.channels, s.versions
FROM unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.checkpoints c
    WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = k.ns AND c.checkpoint_id = k.id
    OFFSET 0
) c
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(v.channel), '{{}}') AS channels, coalesce(array_agg(v.version), '{{}}') AS versions,
        coalesce(bool_or(v.version IS NULL), false) AS inside
    FROM unnest(c.value_channels, c.value_versions) AS v (channel, version)
    WHERE ((k.ns, k.id, v.channel) IN (
        SELECT * FROM unnest(%(seed_ns)s::text[], %(seed_id)s::text[], %(seed_channel)s::text[])
    )) IS TRUE
) s
ON CONFLICT DO NOTHING
""")

DELETE_CHECKPOINTS = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.checkpoints c WHERE c.thread_id = %(thread)s::text
    AND ((c.checkpoint_ns, c.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    RETURNING pg_column_size(c.checkpoint) + pg_column_size(c.metadata) + pg_column_size(c.metadata_index)
        + pg_column_size(c.value_channels) + pg_column_size(c.value_versions) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_ANCESTORS = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.ancestors a WHERE a.thread_id = %(thread)s::text
    AND ((a.checkpoint_ns, a.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    RETURNING coalesce(pg_column_size(a.checkpoint), 0) + pg_column_size(a.value_channels) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_WRITES = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.writes w WHERE w.thread_id = %(thread)s::text
    AND ((w.checkpoint_ns, w.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    AND ((w.checkpoint_ns, w.checkpoint_id, w.channel) IN (
        SELECT * FROM unnest(%(kept_ns)s::text[], %(kept_id)s::text[], %(kept_channel)s::text[])
    )) IS NOT TRUE
    RETURNING pg_column_size(w.value) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_VALUES = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.channel_values v WHERE v.thread_id = %(thread)s::text
    AND ((v.checkpoint_ns, v.channel, v.version) IN (
        SELECT * FROM unnest(%(ns)s::text[], %(channel)s::text[], %(version)s::text[])
    )) IS TRUE
    RETURNING coalesce(pg_column_size(v.data), 0) + coalesce(pg_column_size(v.segments), 0) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

# Segments that no value of the thread names, itself or by an index: comes after what deletes values.
DELETE_SEGMENTS = Statement("""
WITH entry AS MATERIALIZED (
    SELECT DISTINCT e.hash FROM {schema}.channel_values v CROSS JOIN unnest(v.segments) AS e (hash)
    WHERE v.thread_id = %(thread)s::text AND v.segments IS NOT NULL
), named AS (
    SELECT hash FROM entry
    UNION
    SELECT substr(s.data, i, 20)
    FROM entry e CROSS JOIN LATERAL (
        SELECT s.data FROM {schema}.segments s WHERE s.thread_id = %(thread)s::text AND s.hash = e.hash LIMIT 1
    ) s CROSS JOIN generate_series(1, length(s.data), 20) AS i
    WHERE substr(e.hash, 1, 1) IN ('\\x01', '\\x03')
), deleted AS (
    DELETE FROM {schema}.segments s
    WHERE s.thread_id = %(thread)s::text AND (s.hash IN (SELECT hash FROM named)) IS NOT TRUE
    RETURNING pg_column_size(s.data) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

FORGET_PARENTS = Statement("""
UPDATE {schema}.checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = %(thread)s::text
AND ((checkpoint_ns, checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
""")

FOLD_CHANNELS = RowsStatement(
    {"thread": "text", "ns": "text", "id": "text", **SENT_COLUMNS},
    """, p AS MATERIALIZED (
    SELECT *, 'fine' AS verdict FROM given
), """,
    SENT,
    """    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE
    SET type = excluded.type, data = excluded.data, segments = excluded.segments
)
UPDATE {schema}.checkpoints SET
    value_channels = value_channels || p.channels, value_versions = value_versions || p.versions,
    delta_channels = nullif(array(
        SELECT d FROM unnest(delta_channels) AS d WHERE d <> ALL (p.channels)
    ), '{{}}')
FROM p WHERE thread_id = p.thread AND checkpoint_ns = p.ns AND checkpoint_id = p.id AND delta_channels @> p.channels
""",
)

MARK_PRUNED = Statement("""
INSERT INTO {schema}.prunes (thread_id) VALUES (%(thread)s::text)
ON CONFLICT (thread_id) DO UPDATE SET pruned_at = now()
""")

# Nothing is erased of a thread with effects that need a decision, unless by force: their rows would be found by
# nobody. The others' payloads go; what is left of them is that they happened, in a life of the thread that ended.
ERASE_THREAD = Statement("""
WITH unresolved AS MATERIALIZED (
    SELECT count(*) AS effects FROM {schema}.effects
    WHERE thread_id = %(thread)s::text AND state IN ('issued', 'unknown') AND NOT %(force)s::bool
), doomed AS MATERIALIZED (
    SELECT %(thread)s::text AS thread_id FROM unresolved WHERE effects = 0
), c AS (
    DELETE FROM {schema}.checkpoints WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(checkpoint) + pg_column_size(metadata) + pg_column_size(metadata_index)
        + pg_column_size(value_channels) + pg_column_size(value_versions) AS size
), a AS (
    DELETE FROM {schema}.ancestors WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING coalesce(pg_column_size(checkpoint), 0) + pg_column_size(value_channels) AS size
), v AS (
    DELETE FROM {schema}.channel_values WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING coalesce(pg_column_size(data), 0) + coalesce(pg_column_size(segments), 0) AS size
), s AS (
    DELETE FROM {schema}.segments WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(data) AS size
), w AS (
    DELETE FROM {schema}.writes WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(value) AS size
), r AS (
    DELETE FROM {schema}.effect_results WHERE effect_id IN (
        SELECT effect_id FROM {schema}.effects WHERE thread_id = (SELECT thread_id FROM doomed)
    ) RETURNING pg_column_size(data) AS size
), e AS (
    UPDATE {schema}.effects SET input_type = NULL, input = NULL, result = NULL, error = NULL, expired_at = now(),
        scope_thread = CASE WHEN scope_thread <> '' THEN scope_thread || ' erased ' || %(ulid)s::uuid::text ELSE '' END
    WHERE thread_id = (SELECT thread_id FROM doomed) AND (expired_at IS NULL OR scope_thread = thread_id)
), events AS (
    -- The history stays; errors and notes, which may quote arguments, do not.
    UPDATE {schema}.effect_events SET reason = NULL WHERE reason IS NOT NULL AND effect_id IN (
        SELECT effect_id FROM {schema}.effects WHERE thread_id = (SELECT thread_id FROM doomed)
    )
), p AS (
    DELETE FROM {schema}.prunes WHERE thread_id = (SELECT thread_id FROM doomed)
), t AS (
    INSERT INTO {schema}.tombstones (thread_id, ulid)
    SELECT thread_id, %(ulid)s::uuid FROM doomed WHERE EXISTS (SELECT FROM c)
    ON CONFLICT (thread_id) DO UPDATE SET ulid = excluded.ulid, deleted_at = now()
)
SELECT 'checkpoints', count(*), coalesce(sum(size), 0), now(), (SELECT effects FROM unresolved) FROM c
UNION ALL SELECT 'ancestors', count(*), coalesce(sum(size), 0), now(), 0 FROM a
UNION ALL SELECT 'channel_values', count(*), coalesce(sum(size), 0), now(), 0 FROM v
UNION ALL SELECT 'segments', count(*), coalesce(sum(size), 0), now(), 0 FROM s
UNION ALL SELECT 'writes', count(*), coalesce(sum(size), 0), now(), 0 FROM w
UNION ALL SELECT 'effect_results', count(*), coalesce(sum(size), 0), now(), 0 FROM r
""")

# One statement, so one snapshot: a run that writes the source meanwhile is copied as of one moment.
COPY_THREAD = Statement("""
WITH taken AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = %(target)s::text) AS taken
), c AS (
    INSERT INTO {schema}.checkpoints
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, ulid, created_at, parent_checkpoint_id,
        root_checkpoint_id, run_id, format, type, checkpoint, metadata_type, metadata, metadata_index,
        value_channels, value_versions, delta_channels
    FROM {schema}.checkpoints, taken WHERE thread_id = %(source)s::text AND NOT taken
    RETURNING 1
), a AS (
    INSERT INTO {schema}.ancestors
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
        value_channels, value_versions
    FROM {schema}.ancestors, taken WHERE thread_id = %(source)s::text AND NOT taken
), v AS (
    INSERT INTO {schema}.channel_values
    SELECT %(target)s::text, checkpoint_ns, channel, version, type, data, segments
    FROM {schema}.channel_values, taken WHERE thread_id = %(source)s::text AND NOT taken
), s AS (
    INSERT INTO {schema}.segments
    SELECT %(target)s::text, hash, data
    FROM {schema}.segments, taken WHERE thread_id = %(source)s::text AND NOT taken
), w AS (
    INSERT INTO {schema}.writes
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, value, stored_at
    FROM {schema}.writes, taken WHERE thread_id = %(source)s::text AND NOT taken
    ON CONFLICT DO NOTHING
), p AS (
    INSERT INTO {schema}.prunes
    SELECT %(target)s::text, pruned_at
    FROM {schema}.prunes, taken WHERE thread_id = %(source)s::text AND NOT taken
    ON CONFLICT DO NOTHING
), effect AS MATERIALIZED (
    SELECT e.*, (
        lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || right(replace(gen_random_uuid()::text, '-', ''), 20)
    )::uuid AS new_id,
    CASE state WHEN 'issued' THEN 'unknown' WHEN 'claimed' THEN 'suspended' ELSE state END AS new_state
    FROM {schema}.effects e, taken WHERE scope_thread = %(source)s::text AND NOT taken
), e AS (
    INSERT INTO {schema}.effects (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, task_id, run_id,
        message_id, tool_call_id, tool, scope, input_hash, input_type, input, state, previous_state, generation,
        attempts, asked, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost, output_hash,
        source, error, origin, expired_at, lease_until
    )
    SELECT new_id, %(target)s::text, key, vendor_seed, %(target)s::text, checkpoint_ns, checkpoint_id, task_id, run_id,
        message_id, tool_call_id, tool, scope, input_hash, input_type, input, new_state, state, generation,
        attempts, asked, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost, output_hash,
        source, error, effect_id, expired_at,
        CASE WHEN new_state IN ('unknown', 'suspended') THEN least(lease_until, now()) END
    FROM effect
    ON CONFLICT DO NOTHING
    RETURNING effect_id, state, attempts, origin
), r AS (
    INSERT INTO {schema}.effect_results
    SELECT e.effect_id, r.type, r.data FROM e JOIN {schema}.effect_results r ON r.effect_id = e.origin
), l AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, reason)
    SELECT effect_id, NULL, state, 1, attempts, 'copied with thread ' || %(source)s::text FROM e
), t AS (
    DELETE FROM {schema}.tombstones
    WHERE thread_id = %(target)s::text AND EXISTS (
        SELECT FROM {schema}.checkpoints, taken WHERE thread_id = %(source)s::text AND NOT taken
    )
)
SELECT taken, (SELECT count(*) FROM c) FROM taken
""")

FIND_THREADS_OF_RUNS = Statement(
    "SELECT DISTINCT thread_id FROM {schema}.checkpoints WHERE run_id = ANY (%s::text[]) ORDER BY thread_id"
)


# --- sweep ---

COUNT_THREADS = Statement("SELECT count(DISTINCT thread_id) FROM {schema}.checkpoints")

# One step a thread: a DISTINCT would read every checkpoint.
NEXT_THREADS = Statement("""
WITH RECURSIVE t AS (
    (SELECT thread_id FROM {schema}.checkpoints WHERE thread_id > %(after)s::text ORDER BY thread_id LIMIT 1)
    UNION ALL
    SELECT (SELECT c.thread_id FROM {schema}.checkpoints c WHERE c.thread_id > t.thread_id ORDER BY thread_id LIMIT 1)
    FROM t WHERE t.thread_id IS NOT NULL
)
SELECT thread_id FROM t WHERE thread_id IS NOT NULL LIMIT %(count)s::int
""")

# Writes may come before their checkpoint, so those that are new are left; how old they are, their ids tell.
LIST_ORPHAN_WRITES = Statement("""
SELECT DISTINCT w.thread_id, w.checkpoint_ns, w.checkpoint_id FROM {schema}.writes w
WHERE NOT EXISTS (
    SELECT FROM {schema}.checkpoints c
    WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
) AND NOT EXISTS (
    SELECT FROM {schema}.ancestors a
    WHERE a.thread_id = w.thread_id AND a.checkpoint_ns = w.checkpoint_ns AND a.checkpoint_id = w.checkpoint_id
) AND NOT EXISTS (
    SELECT FROM {schema}.checkpoints c
    WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns
    AND c.parent_checkpoint_id = w.checkpoint_id AND c.format < 4
)
""")

FORGET_OLD_TOMBSTONES = Statement("DELETE FROM {schema}.tombstones WHERE deleted_at < now() - %s::interval")
