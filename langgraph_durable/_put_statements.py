"""The statements that store checkpoints and writes. Each stores one row or many.

The bytes come in one string, and the rows' columns tell where: a row's own begin at its base.

- A put may name values it does not send. They are looked up by scalar subqueries, and elsewhere by LATERALs with
  a LIMIT or OFFSET, never by joins: a join is planned from estimates of rows per thread, which are worst for the
  few huge threads that matter.
- A checkpoint's ULID is what its id tells, unless that is not after what came before it: the head of its namespace
  if its parent is stored or its id tells no time (two may come within a millisecond), and the root graph's checkpoint
  that a subgraph's call started from. Then a clock is off, and it is the successor of the thread's last. (Namespaces
  must agree: the runtime asks for a subgraph's checkpoints before one of the root's.) A successor is the number plus
  one, done on the lower 64 bits; those of a ULID made here are never all ones.
- What a graph does not know of its thread stays: channels that a put neither has a value for nor a new version are the
  parent's affair. An ancestor has no list of its delta channels, but seeds and writes of no others.
- So is a delta channel without a new version: the parent's snapshot is its value here, too. Replayed from the parent it
  would change whenever another branch writes there.
- A delta channel that is replayed needs the parent: if that is not stored, all before it would be lost without a word.
  Such a put is refused.
- Segments: see _segments.py. What a stored index or value names is stored, so a put looks only for what its own rows
  name and it does not send.
"""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._statements import RowsStatement, Statement

# What a put sends besides its checkpoint: p has its rows.
SENT_COLUMNS: dict[LiteralString, LiteralString] = {
    "channels": "text[]",
    "versions": "text[]",
    "types": "text[]",
    "hashes_at": "int",
    "needed_at": "int",
    "needed": "int",
    "data_ats": "int[]",
    "data_sizes": "int[]",
    "entries_ats": "int[]",
    "entries_sizes": "int[]",
    "segment_ats": "int[]",
    "segment_sizes": "int[]",
}

SENT: LiteralString = """segmented AS (
    INSERT INTO {schema}.segments (thread_id, hash, data)
    SELECT p.thread,
        substr(%(bytes)s::bytea, p.base + p.hashes_at + 20 * (s.number - 1)::int + 1, 20),
        substr(%(bytes)s::bytea, p.base + s.at + 1, s.size)
    FROM p CROSS JOIN LATERAL unnest(p.segment_ats, p.segment_sizes) WITH ORDINALITY AS s (at, size, number)
    WHERE verdict = 'fine'
    ON CONFLICT DO NOTHING
), sent AS (
    INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, data, segments)
    SELECT p.thread, p.ns, v.channel, v.version, v.type, substr(%(bytes)s::bytea, p.base + v.at + 1, v.size),
        CASE WHEN v.entries_at IS NOT NULL THEN array(
            SELECT substr(%(bytes)s::bytea, p.base + v.entries_at + i + 1, 20)
            FROM generate_series(0, v.entries_size - 20, 20) AS i ORDER BY i
        ) END
    FROM p CROSS JOIN LATERAL unnest(
        p.channels, p.versions, p.types, p.data_ats, p.data_sizes, p.entries_ats, p.entries_sizes
    ) AS v (channel, version, type, at, size, entries_at, entries_size)
    WHERE verdict = 'fine'
"""


PUT_CHECKPOINTS = RowsStatement(
    {
        "thread": "text",
        "ns": "text",
        "id": "text",
        "derived_ulid": "uuid",
        "parent": "text",
        "root": "text",
        "run_id": "text",
        "format": "int",
        "type": "text",
        "checkpoint_size": "int",
        "metadata_type": "text",
        "metadata_size": "int",
        "metadata_index": "text",
        "value_channels": "text[]",
        "value_versions": "text[]",
        "delta_channels": "text[]",
        "kept": "text[]",
        "kept_versions": "text[]",
        **SENT_COLUMNS,
    },
    """, p AS MATERIALIZED (
    SELECT g.*, verdict, missing, lacking,
        parents.channels AS kept_channels, parents.versions AS versions_kept, parents.deltas AS kept_deltas,
        CASE
            WHEN (stored OR g.derived_ulid IS NULL) AND head.ulid >= derived.ulid OR root.ulid >= derived.ulid
            OR NOT stored AND (
                SELECT 1 FROM {schema}.checkpoints c
                WHERE c.thread_id = g.thread AND c.checkpoint_ns = g.ns AND c.ulid = derived.ulid
            ) IS NOT NULL
            THEN (
                SELECT (left(hex, 16) || lpad(to_hex(('x' || right(hex, 16))::bit(64)::bigint + 1), 16, '0'))::uuid
                FROM (
                    SELECT replace(ulid::text, '-', '') AS hex FROM {schema}.checkpoints
                    WHERE thread_id = g.thread AND ulid IS NOT NULL
                    ORDER BY ulid DESC LIMIT 1
                ) AS last
            )
            ELSE derived.ulid
        END AS ulid
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
    CROSS JOIN LATERAL (
        SELECT parent.channels IS NOT NULL AS stored,
            array_agg(k.channel) FILTER (WHERE v.version IS NOT NULL) AS channels,
            array_agg(v.version) FILTER (WHERE v.version IS NOT NULL) AS versions,
            array_agg(k.channel) FILTER (WHERE v.channel IS NULL AND k.channel <> ALL (g.delta_channels)) AS deltas,
            array_agg(k.channel) FILTER (WHERE v.channel IS NOT NULL AND v.version IS NULL) AS inside
        FROM unnest(g.kept, g.kept_versions) AS k (channel, version)
        LEFT JOIN unnest(parent.channels, parent.versions) AS v (channel, version) USING (channel)
        WHERE CASE WHEN v.channel IS NULL THEN k.channel = ANY (parent.deltas)
            ELSE coalesce(v.version = k.version, true) END
    ) AS parents
    CROSS JOIN LATERAL (
        SELECT array(
            SELECT n.channel FROM unnest(g.value_channels, g.value_versions) AS n (channel, version)
            WHERE n.version IS NOT NULL AND n.channel <> ALL (g.channels) AND (
                SELECT 1 FROM {schema}.channel_values v
                WHERE v.thread_id = g.thread AND v.checkpoint_ns = g.ns
                AND v.channel = n.channel AND v.version = n.version
            ) IS NULL
        ) AS absent, array(
            SELECT n.hash FROM generate_series(0, g.needed - 1) AS i
            CROSS JOIN LATERAL (SELECT substr(%(bytes)s::bytea, g.base + g.needed_at + 20 * i + 1, 20)) AS n (hash)
            WHERE (
                SELECT 1 FROM {schema}.segments s WHERE s.thread_id = g.thread AND s.hash = n.hash
            ) IS NULL
        ) AS lacking
        OFFSET 0
    ) AS found
    CROSS JOIN LATERAL (
        SELECT CASE WHEN absent <> '{{}}' THEN absent ELSE inside END AS missing, CASE
            WHEN absent <> '{{}}' THEN 'values missing'
            WHEN lacking <> '{{}}' THEN 'segments missing'
            WHEN inside IS NOT NULL THEN 'values in parent'
            WHEN stored OR g.parent IS NULL THEN 'fine'
            WHEN (SELECT 1 FROM {schema}.tombstones WHERE thread_id = g.thread) IS NOT NULL THEN 'thread deleted'
            WHEN g.delta_channels = '{{}}' THEN 'fine'
            WHEN (SELECT 1 FROM {schema}.prunes WHERE thread_id = g.thread) IS NOT NULL THEN 'parent pruned'
            ELSE 'parent missing'
        END AS verdict
    ) AS judged
    LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = g.thread AND checkpoint_ns = g.ns AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    ) AS head ON true
    LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = g.thread AND checkpoint_ns = '' AND checkpoint_id = g.root
        LIMIT 1
    ) AS root ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(g.derived_ulid, (
            lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 20)
        )::uuid) AS ulid
        OFFSET 0
    ) AS derived
), """,
    SENT,
    """    ON CONFLICT DO NOTHING
), restarted AS (
    DELETE FROM {schema}.tombstones
    WHERE thread_id = ANY (array(SELECT thread FROM given WHERE ns = '' AND parent IS NULL))
), stored AS (
    INSERT INTO {schema}.checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, ulid, parent_checkpoint_id, root_checkpoint_id, run_id, format,
        type, checkpoint, metadata_type, metadata, metadata_index, value_channels, value_versions, delta_channels
    )
    SELECT
        thread, ns, id, ulid, nullif(parent, id), root, run_id, format,
        type, substr(%(bytes)s::bytea, base + 1, checkpoint_size),
        metadata_type, substr(%(bytes)s::bytea, base + checkpoint_size + 1, metadata_size), metadata_index::jsonb,
        value_channels || kept_channels, value_versions || versions_kept,
        nullif(array(
            SELECT d FROM unnest(delta_channels) AS d WHERE d <> ALL (coalesce(kept_channels, '{{}}'))
        ) || kept_deltas, '{{}}')
    FROM p WHERE verdict = 'fine'
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
        run_id = excluded.run_id, format = excluded.format,
        type = excluded.type, checkpoint = excluded.checkpoint,
        metadata_type = excluded.metadata_type, metadata = excluded.metadata,
        metadata_index = excluded.metadata_index,
        value_channels = excluded.value_channels, value_versions = excluded.value_versions,
        delta_channels = excluded.delta_channels
)
SELECT number, verdict, missing, lacking FROM p
""",
)

# What is inside a checkpoint: an ancestor's, if a delta channel needs it still.
GET_INSIDE = Statement("""
SELECT type, checkpoint FROM {schema}.checkpoints
WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
UNION ALL
SELECT type, checkpoint FROM {schema}.ancestors
WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
LIMIT 1
""")

_WRITES_COLUMNS: dict[LiteralString, LiteralString] = {
    "thread": "text",
    "ns": "text",
    "id": "text",
    "task_id": "text",
    "task_path": "text",
    "indexes": "int[]",
    "channels": "text[]",
    "types": "text[]",
    "value_ats": "int[]",
    "value_sizes": "int[]",
}

_PUT_WRITES: LiteralString = """
INSERT INTO {schema}.writes AS stored (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value
)
SELECT g.thread, g.ns, g.id, g.task_id, g.task_path, w.idx, w.channel, w.type,
    substr(%(bytes)s::bytea, g.base + w.at + 1, w.size)
FROM given g CROSS JOIN LATERAL unnest(g.indexes, g.channels, g.types, g.value_ats, g.value_sizes)
AS w (idx, channel, type, at, size)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
"""

PUT_WRITES_FIRST_WINS = RowsStatement(_WRITES_COLUMNS, _PUT_WRITES + "DO NOTHING")

PUT_WRITES_LAST_WINS = RowsStatement(
    _WRITES_COLUMNS,
    _PUT_WRITES
    + """DO UPDATE SET
    task_path = excluded.task_path, channel = excluded.channel, type = excluded.type, value = excluded.value,
    stored_at = CASE
        WHEN (stored.channel, stored.type, stored.value) = (excluded.channel, excluded.type, excluded.value)
        THEN stored.stored_at ELSE excluded.stored_at
    END
WHERE stored.idx < 0 -- a special channel's
""",
)
