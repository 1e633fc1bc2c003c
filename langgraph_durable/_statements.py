"""Every SQL statement of the saver, each a constant; only the schema's name is filled in.

What is not obvious:

- A put may name values it does not send. They are looked up by scalar subqueries, and elsewhere by LATERALs with
  a LIMIT or OFFSET, never by joins: a join is planned from estimates of rows per thread, which are worst for the
  few huge threads that matter.
- A checkpoint's ULID is what its id tells, unless that is not after what came before it: the head of its namespace
  if its parent is stored, and the root graph's checkpoint that a subgraph's call started from. Then a clock is off,
  and it is the successor of the thread's last. (Namespaces must agree: the runtime asks for a subgraph's
  checkpoints before one of the root's.) A successor is the number plus one, done on the lower 64 bits; those of a
  ULID made here are never all ones.
- What a graph does not know of its thread stays: channels that a put neither has a value for nor a new version are the
  parent's affair. An ancestor has no list of its delta channels, but seeds and writes of no others.
- Statements that read checkpoints give rows of five kinds in one answer, so that one query, and so one
  snapshot, fetches checkpoints with their values and their writes: no prune can come between. Values that are made of
  segments come with the hashes of these, which a second query fetches as far as they are not at hand.
- Segments: see _segments.py. The first byte of an index's hash is 1 or 3; an index is hashes of 20 bytes. What a stored
  index or value names is stored, so a put looks only for what its own rows name and it does not send.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, cast

from psycopg import sql
from typing_extensions import LiteralString


class Statement:
    """A statement's text, with `{schema}` where the schema's name goes and `{schema_name}` for it as text.

    Its parameters are `%(name)s`, taken from a mapping, or `%s`, taken from a sequence.
    """

    __slots__ = ("text",)

    def __init__(self, text: LiteralString) -> None:
        self.text: LiteralString = text


class Rendered(NamedTuple):
    """A statement as Postgres reads it, with `$1` and so on."""

    query: bytes
    names: tuple[str, ...]
    """Of its parameters, in their order; none if they have no names."""

    def arguments(self, params: Sequence[Any] | Mapping[str, Any] | None) -> Sequence[Any]:
        """Return the parameters in the order of their numbers."""
        return [params[name] for name in self.names] if isinstance(params, Mapping) else params or ()


_PARAMETER = re.compile(r"%(?:\((\w+)\))?s")


@lru_cache(maxsize=4096)
def render(statement: Statement, schema: str) -> Rendered:
    """Return a statement for a schema, its parameters numbered: done once, where psycopg would at each call."""
    names: dict[str, int] = {}
    unnamed = count(1)

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1) if match[1] else next(unnamed)}"

    text = _PARAMETER.sub(number, statement.text)
    return Rendered(_format(cast("Any", text), schema), tuple(names))


def render_script(statement: Statement, schema: str) -> bytes:
    """Return the text of a statement without parameters, or of several, for a schema."""
    return _format(statement.text, schema)


def _format(text: LiteralString, schema: str) -> bytes:
    return sql.SQL(text).format(schema=sql.Identifier(schema), schema_name=sql.Literal(schema)).as_bytes(None)


# --- locks: transaction-scoped only, so that they hold behind pgbouncer and go with their transaction ---

LOCK_SETUP = Statement("SELECT pg_advisory_xact_lock(hashtextextended('setup ' || {schema_name}, 0))")

LOCK_THREADS_SHARED = Statement("""
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
""")

SET_LOCK_TIMEOUT = Statement("SELECT set_config('lock_timeout', %s::text, true)")

LOCK_THREAD = Statement("SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))")


# --- put ---
#
# These store one row or many. The bytes come in one string, and the rows' columns tell where: a row's own begin at its
# base.


class RowsStatement:
    """A statement that stores rows: one row, whose columns are its parameters, or any number, an array a column."""

    __slots__ = ("many", "one")

    def __init__(self, columns: Mapping[LiteralString, LiteralString], *text: LiteralString) -> None:
        """Make both from the text that follows `WITH given AS (...)`, whose rows have a number, a base and columns.

        An array of arrays must be a rectangle, so of many rows a column of lists has their texts.
        """
        one = ", ".join([f"%({name})s::{kind} AS {name}" for name, kind in columns.items()])
        casts = ", ".join([f"{name}::{kind}" for name, kind in columns.items()])
        arrays = ", ".join([f"%({name})s::text[]" for name in columns])
        names = ", ".join(columns)
        begin: LiteralString = "WITH given AS MATERIALIZED (SELECT "
        self.one = Statement("".join([begin, "1 AS number, 0 AS base, ", one, ")", *text]))
        given = (" WITH ORDINALITY AS given (base, ", names, ", number))")
        rows = ("number, base, ", casts, " FROM unnest(%(base)s::int[], ", arrays, ")")
        self.many = Statement("".join((begin, *rows, *given, *text)))


# What a put sends besides its checkpoint: p has its rows.
_SENT_COLUMNS: dict[LiteralString, LiteralString] = {
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

_SENT: LiteralString = """segmented AS (
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
        "metadata_index": "jsonb",
        "value_channels": "text[]",
        "value_versions": "text[]",
        "delta_channels": "text[]",
        "kept": "text[]",
        "kept_versions": "text[]",
        **_SENT_COLUMNS,
    },
    """, p AS MATERIALIZED (
    SELECT g.*, verdict, missing, lacking,
        parents.channels AS kept_channels, parents.versions AS versions_kept, parents.deltas AS kept_deltas,
        CASE
            WHEN stored AND head.ulid >= derived.ulid OR root.ulid >= derived.ulid
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
            array_agg(k.channel) FILTER (WHERE v.channel IS NULL) AS deltas,
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
            WHEN g.delta_channels <> '{{}}'
            AND (SELECT 1 FROM {schema}.prunes WHERE thread_id = g.thread) IS NOT NULL THEN 'parent pruned'
            ELSE 'fine'
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
    _SENT,
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
        metadata_type, substr(%(bytes)s::bytea, base + checkpoint_size + 1, metadata_size), metadata_index,
        value_channels || kept_channels, value_versions || versions_kept,
        nullif(delta_channels || kept_deltas, '{{}}')
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
""",
)


# --- get and list ---

_COLUMNS: LiteralString = """
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid, format, type, checkpoint,
    metadata_type, metadata, value_channels, value_versions
"""

# The kinds of rows that reading checkpoints gives. Columns: kind, thread_id, checkpoint_ns, then by kind
#   CHECKPOINT  checkpoint_id, parent_checkpoint_id, -, -, type, checkpoint, metadata_type, metadata, ulid,
#               value_channels, value_versions
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
    AND (metadata_index @> %(filter)s::jsonb OR NOT metadata_index ?& %(filter_keys)s::text[])
    ORDER BY ulid DESC, thread_id DESC, checkpoint_ns DESC LIMIT %(size)s::int
""",
        source,
    )


def _list_one(scope: LiteralString) -> Statement:
    # Found first, by its key (OFFSET 0): a plan for any LIMIT would rather walk the thread in the order of ulid.
    one: LiteralString = "checkpoint_id = %(checkpoint_id)s::text OFFSET 0"
    return _list("", "(SELECT * FROM {schema}.checkpoints WHERE " + scope + one + ") AS one")  # noqa: S608 (constants)


_THREAD: LiteralString = "thread_id = %(thread_id)s::text AND "
_NAMESPACE: LiteralString = "checkpoint_ns = %(checkpoint_ns)s::text AND "

GET_LATEST = _read(
    "thread_id = %s::text AND checkpoint_ns = %s::text AND ulid IS NOT NULL ORDER BY ulid DESC LIMIT 1"
)
GET_BY_ID = _read("thread_id = %s::text AND checkpoint_ns = %s::text AND checkpoint_id = %s::text")
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
#   RUN              -, -, its number, -, -, -, the ids of its checkpoints, newest first
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
), walk (ids, parent, value_channels, value_versions, size, wanted, remaining) AS (
    SELECT '{{}}'::text[] COLLATE "C", target.parent, '{{}}'::text[] COLLATE "C", '{{}}'::text[] COLLATE "C", 32,
        %(channels)s::text[] COLLATE "C", %(channels)s::text[] COLLATE "C"
    FROM target
    UNION
    SELECT r.ids[:c.cut], r.parents[c.cut], coalesce(v.value_channels, '{{}}'), coalesce(v.value_versions, '{{}}'),
        least(2 * c.cut, 256), w.remaining,
        array(SELECT r FROM unnest(w.remaining) AS r WHERE r <> ALL (coalesce(v.value_channels, '{{}}')))
    FROM walk w LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = w.parent
        LIMIT 1
    ) p ON true CROSS JOIN LATERAL (
        SELECT array_agg(checkpoint_id) AS ids, array_agg(parent_checkpoint_id) AS parents, count(*)::int AS n,
            array_position(array_agg(value_channels && w.remaining), true) AS seeding
        FROM (
            (
                SELECT checkpoint_id, parent_checkpoint_id, value_channels FROM {schema}.checkpoints
                WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text
                AND ulid IS NOT NULL AND ulid <= p.ulid
                ORDER BY ulid DESC LIMIT w.size
            )
            UNION ALL
            (
                SELECT checkpoint_id, parent_checkpoint_id, value_channels FROM {schema}.ancestors a
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
SELECT -1, NULL::text, NULL::text, NULL::text, n, NULL::text, NULL::text, NULL::bytea, ids, NULL::bytea[] FROM run
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


# --- prune, erase, copy: all under the thread's exclusive lock ---

NOW = Statement("SELECT now()")

LIST_NODES = Statement("""
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, ulid, created_at,
    root_checkpoint_id, run_id, format, delta_channels,
    checkpoint_ns = '' AND metadata_index ->> 'source' IN ('update', 'fork')
FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
UNION ALL
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions, NULL, NULL,
    NULL, NULL, 4, NULL, false
FROM {schema}.ancestors WHERE thread_id = %(thread)s::text
""")

# Parameters of the statements that remove: parallel arrays of namespaces and ids (and channels or versions).

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
    WHERE (k.ns, k.id, v.channel) IN (
        SELECT * FROM unnest(%(seed_ns)s::text[], %(seed_id)s::text[], %(seed_channel)s::text[])
    )
) s
ON CONFLICT DO NOTHING
""")

DELETE_CHECKPOINTS = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.checkpoints c USING unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
    WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = k.ns AND c.checkpoint_id = k.id
    RETURNING pg_column_size(c.checkpoint) + pg_column_size(c.metadata) + pg_column_size(c.metadata_index)
        + pg_column_size(c.value_channels) + pg_column_size(c.value_versions) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_ANCESTORS = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.ancestors a USING unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
    WHERE a.thread_id = %(thread)s::text AND a.checkpoint_ns = k.ns AND a.checkpoint_id = k.id
    RETURNING coalesce(pg_column_size(a.checkpoint), 0) + pg_column_size(a.value_channels) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_WRITES = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.writes w USING unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
    WHERE w.thread_id = %(thread)s::text AND w.checkpoint_ns = k.ns AND w.checkpoint_id = k.id
    AND NOT EXISTS (
        SELECT FROM unnest(%(kept_ns)s::text[], %(kept_id)s::text[], %(kept_channel)s::text[]) AS x (ns, id, channel)
        WHERE x.ns = w.checkpoint_ns AND x.id = w.checkpoint_id AND x.channel = w.channel
    )
    RETURNING pg_column_size(w.value) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

DELETE_VALUES = Statement("""
WITH deleted AS (
    DELETE FROM {schema}.channel_values v
    USING unnest(%(ns)s::text[], %(channel)s::text[], %(version)s::text[]) AS k (ns, channel, version)
    WHERE v.thread_id = %(thread)s::text AND v.checkpoint_ns = k.ns AND v.channel = k.channel
    AND v.version = k.version
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
    WHERE s.thread_id = %(thread)s::text AND NOT EXISTS (SELECT FROM named n WHERE n.hash = s.hash)
    RETURNING pg_column_size(s.data) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
""")

FORGET_PARENTS = Statement("""
UPDATE {schema}.checkpoints c SET parent_checkpoint_id = NULL
FROM unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = k.ns AND c.checkpoint_id = k.id
""")

FOLD_CHANNELS = RowsStatement(
    {"thread": "text", "ns": "text", "id": "text", **_SENT_COLUMNS},
    """, p AS MATERIALIZED (
    SELECT *, 'fine' AS verdict FROM given
), """,
    _SENT,
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
    WHERE thread_id = (SELECT thread_id FROM doomed) AND expired_at IS NULL
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
        source, error, origin, expired_at
    )
    SELECT new_id, %(target)s::text, key, vendor_seed, %(target)s::text, checkpoint_ns, checkpoint_id, task_id, run_id,
        message_id, tool_call_id, tool, scope, input_hash, input_type, input, new_state, state, generation,
        attempts, asked, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost, output_hash,
        source, error, effect_id, expired_at
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


# --- schema ---

# Not to_regnamespace and to_regclass: in a transaction that waited for an advisory lock, their caches still hold
# what was there before. The cast to name cuts a long name as CREATE does.
FIND_SCHEMA = Statement(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_name}::name)"
)

FIND_MIGRATIONS_TABLE = Statement("""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = 'schema_migrations'
)
""")

CREATE_SCHEMA = Statement("CREATE SCHEMA {schema}")

CREATE_MIGRATIONS_TABLE = Statement("""
CREATE TABLE {schema}.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
""")

LIST_MIGRATIONS = Statement("SELECT version, name, checksum FROM {schema}.schema_migrations ORDER BY version")

RECORD_MIGRATION = Statement(
    "INSERT INTO {schema}.schema_migrations (version, name, checksum) VALUES (%s, %s, %s)"
)
