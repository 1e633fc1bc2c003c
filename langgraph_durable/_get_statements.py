"""The statements that read checkpoints, and what delta channels are replayed from.

- Those that read checkpoints give rows of five kinds in one answer, so that one query, and so one snapshot, fetches
  checkpoints with their values and their writes: no prune can come between. Values that are made of segments come with
  the hashes of these, which a second query fetches as far as they are not at hand.
- Values are looked up by LATERALs with a LIMIT or OFFSET, never by joins: see _put_statements.py.
- Segments: see _segments.py. The first byte of an index's hash is 1 or 3; an index is hashes of 20 bytes.
"""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._statements import Statement

_COLUMNS: LiteralString = """
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
"""

# The kinds of rows that reading checkpoints gives. Columns: kind, thread_id, checkpoint_ns, then by kind
#   CHECKPOINT  checkpoint_id, parent_checkpoint_id, -, -, type, checkpoint, metadata_type, metadata, ulid,
#               value_channels, value_versions; an ancestor has no metadata, and perhaps no checkpoint
#   VALUE       channel, version, -, -, type, data, -, -, -, -, -, -, segments
#   WRITE       checkpoint_id, task_path, task_id, channel, type, value, -, -, -, -, -, idx
#   SEND        as WRITE, of the parent of a checkpoint that keeps its pending sends there
#   INDEX       -, -, -, -, -, data, -, hash: an index that the values name
CHECKPOINT, VALUE, WRITE, SEND, INDEX = range(5)

_PAGE_VALUES: LiteralString = """value AS MATERIALIZED (
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
"""

_PAGE_CONTENTS: LiteralString = """
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
    WHERE segments IS NOT NULL AND substr(hash, 1, 1) IN ('\\x01', '\\x03')
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
"""


def _read(where: LiteralString, source: LiteralString = "{schema}.checkpoints") -> Statement:
    return Statement(
        "WITH page AS MATERIALIZED (SELECT "
        + _COLUMNS
        + "FROM "
        + source
        + " WHERE "
        + where
        + "), "
        + _PAGE_VALUES
        + _PAGE_CONTENTS
    )


def _list(scope: LiteralString, source: LiteralString = "{schema}.checkpoints") -> Statement:
    # `ulid <=` repeats what the row comparison implies, because an index on ulid can use only the former.
    return _read(
        scope
        + """
    ulid < %(before)s::uuid AND ulid <= %(cursor_ulid)s::uuid
    AND (ulid, thread_id, checkpoint_ns) < (%(cursor_ulid)s::uuid, %(cursor_thread)s::text, %(cursor_ns)s::text)
    AND (
        metadata_index @> %(filter)s::jsonb OR NOT metadata_index ?& %(filter_keys)s::text[]
        OR jsonb_typeof(metadata_index) <> 'object' -- damaged: what matches, the metadata tells
    )
    ORDER BY ulid DESC, thread_id DESC, checkpoint_ns DESC LIMIT %(size)s::int
""",
        source,
    )


def _list_one(scope: LiteralString) -> Statement:
    # Found first, by its key (OFFSET 0): a plan for any LIMIT would rather walk the thread in the order of ulid.
    one: LiteralString = "checkpoint_id = %(checkpoint_id)s::text OFFSET 0"
    return _list("", "(SELECT * FROM {schema}.checkpoints WHERE " + scope + one + ") AS one")


_THREAD: LiteralString = "thread_id = %(thread_id)s::text AND "
_NAMESPACE: LiteralString = "checkpoint_ns = %(checkpoint_ns)s::text AND "

GET_LATEST = _read(
    "thread_id = %s::text AND checkpoint_ns = %s::text AND ulid IS NOT NULL ORDER BY ulid DESC LIMIT 1"
)
_BY_ID: LiteralString = """thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text
    AND checkpoint_id = %(id)s::text
"""
GET_BY_ID = _read(_BY_ID)

# Or what is left of a pruned checkpoint, since LangGraph's own walk to a delta channel's history goes by this. One that
# was put again counts before the ancestor it left. An ancestor is of the newest format, and has no place in any order.
GET_BY_ID_OR_ANCESTOR = _read(
    "true",
    """(
    SELECT """
    + _COLUMNS
    + """    FROM {schema}.checkpoints WHERE """
    + _BY_ID
    + """
    UNION ALL
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, lpad('', 32, '0')::uuid, 4, type, checkpoint,
        NULL, NULL, value_channels, value_versions
    FROM {schema}.ancestors WHERE """
    + _BY_ID
    + """
    LIMIT 1
) AS one""",
)
LIST_ALL = _list("")
LIST_THREAD = _list(_THREAD)
LIST_NAMESPACE = _list(_THREAD + _NAMESPACE)
LIST_ONE_IN_THREAD = _list_one(_THREAD)
LIST_ONE_IN_NAMESPACE = _list_one(_THREAD + _NAMESPACE)

# Of several threads: a page may be of any.
GET_SEGMENTS = Statement("""
SELECT k.thread_id, k.hash, s.data
FROM unnest(%s::text[], %s::bytea[]) AS k (thread_id, hash) CROSS JOIN LATERAL (
    SELECT s.data FROM {schema}.segments s WHERE s.thread_id = k.thread_id AND s.hash = k.hash LIMIT 1
) s
""")

# A ULID may stand for the checkpoint it was given to, or be some runtime's own id, which comes first.
FIND_BY_ULID = Statement("""
SELECT coalesce((
    SELECT checkpoint_id FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text
    AND checkpoint_id = %(id)s::text
), (
    SELECT checkpoint_id FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text AND ulid = %(ulid)s::uuid
), %(id)s::text)
""")

FIND_ULID = Statement("""
SELECT ulid FROM {schema}.checkpoints
WHERE thread_id = %(thread_id)s::text AND checkpoint_id = %(checkpoint_id)s::text
AND (%(checkpoint_ns)s::text IS NULL OR checkpoint_ns = %(checkpoint_ns)s::text)
ORDER BY ulid DESC LIMIT 1
""")


# --- delta channels ---

# The rows that a history gives. Columns: kind, checkpoint_id, then by kind
#   RUN              -, -, its number, -, -, -, the ids of its checkpoints, newest first; as checkpoint_id one of them
#                    whose channels cannot be read, if any
#   SEED_VALUE       -, -, -, channel, type, data, -, segments; without type and data if the row is missing
#   SEED_CHECKPOINT  -, -, -, channel, type, checkpoint: the value is inside
#   SEED_INDEX       -, -, -, -, -, data, -, its hash, alone: an index that the seeds name
#   a run's number   task_path, task_id, idx, channel, type, value: a write. Those of checkpoints that the run does
#                    not have are not part of the history.
RUN, SEED_VALUE, SEED_CHECKPOINT, SEED_INDEX = -1, -2, -3, -4

# The walk up the parents goes by runs, since a step for each ancestor costs ten times as much: a run starts at the
# next parent and takes those that come before it in the thread's order (of ULIDs; of ids among ancestors), up to where
# one is not its predecessor's parent, or has a value of a wanted channel. So a fork, or a parent above its child,
# costs a run and no more. `size` is how many rows to look at for the next run: few where runs are short.
# `wanted` are the channels not yet seeded when the walk comes to a run, `remaining` those still not after it.
# UNION, not UNION ALL: a parent chain that was damaged into a ring ends the walk instead of repeating it.
# Where the ids of a run descend, its writes are one range; a short run's ids may do so by chance, and be far apart.
GET_DELTA_HISTORY = Statement("""
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
    SELECT '{{}}'::text[] COLLATE "C", target.parent, '{{}}'::text[] COLLATE "C", '{{}}'::text[] COLLATE "C", 32,
        %(channels)s::text[] COLLATE "C", %(channels)s::text[] COLLATE "C", NULL::text[] COLLATE "C"
    FROM target
    UNION
    SELECT r.ids[:c.cut], r.parents[c.cut], coalesce(v.value_channels, '{{}}'), coalesce(v.value_versions, '{{}}'),
        least(2 * c.cut, 256), w.remaining,
        array(SELECT r FROM unnest(w.remaining) AS r WHERE r <> ALL (coalesce(v.value_channels, '{{}}'))), r.damaged
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
    WHERE w.remaining <> '{{}}' AND r.ids[1] = w.parent
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
    WHERE segments IS NOT NULL AND substr(hash, 1, 1) IN ('\\x01', '\\x03')
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
""")
