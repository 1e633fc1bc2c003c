"""The statements of those who read for people: the inbox, and the audit trail of a thread."""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._statements import Statement

# --- who waits for a human ---

# A task waits as long as it has written nothing but what is said about tasks: LangGraph's own rule (read_task_statuses
# in langgraph/pregel/_task_status.py). What has no task is the input of the step.
_WAITS: LiteralString = """
    w.channel = '__interrupt__' AND w.task_id <> '00000000-0000-0000-0000-000000000000' AND (
        SELECT 1 FROM {schema}.writes o
        WHERE o.thread_id = w.thread_id AND o.checkpoint_ns = w.checkpoint_ns AND o.checkpoint_id = w.checkpoint_id
        AND o.task_id = w.task_id
        AND o.channel NOT IN ('__error__', '__error_source_node__', '__interrupt__', '__resume__')
        LIMIT 1
    ) IS NULL
"""

# One step for each thread that ever asked, and no further than the page is full: which of its questions may still
# wait, the latest checkpoint of the root graph says. Scalar subqueries and LIMITs, so that no plan can come to read
# whole tables first. A question that comes from a subgraph hangs on the root graph's checkpoint too; those of
# subgraphs, which are newer, only tell where it was asked.
_FROM_WAITING: LiteralString = (
    """
), waiting AS MATERIALIZED (
    SELECT h.* FROM t CROSS JOIN LATERAL (
        SELECT thread_id, checkpoint_id, ulid, created_at FROM {schema}.checkpoints c
        WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.ulid IS NOT NULL
        ORDER BY c.ulid DESC LIMIT 1
    ) h
    WHERE (
        SELECT 1 FROM {schema}.writes w
        WHERE w.thread_id = h.thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = h.checkpoint_id AND
"""
    + _WAITS
    + """
        LIMIT 1
    ) IS NOT NULL
    LIMIT %(size)s::bigint
), asking AS (
    SELECT thread_id, '' AS checkpoint_ns, checkpoint_id, created_at FROM waiting
    UNION ALL
    SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.created_at FROM waiting h CROSS JOIN LATERAL (
        SELECT * FROM {schema}.checkpoints c
        WHERE c.thread_id = h.thread_id AND c.ulid IS NOT NULL AND c.ulid > h.ulid
        AND c.root_checkpoint_id = h.checkpoint_id
        OFFSET 0
    ) c
)
SELECT a.thread_id, a.checkpoint_ns, a.checkpoint_id, w.task_path, w.task_id, w.idx, w.type, w.value,
    w.stored_at, a.created_at, now()
FROM asking a CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = a.thread_id AND w.checkpoint_ns = a.checkpoint_ns AND w.checkpoint_id = a.checkpoint_id AND
"""
    + _WAITS
    + """
    OFFSET 0
) w
"""
)

LIST_WAITING = Statement(
    """
WITH RECURSIVE t AS (
    (
        SELECT thread_id FROM {schema}.writes
        WHERE channel = '__interrupt__' AND checkpoint_ns = '' AND thread_id > %(after)s::text
        ORDER BY thread_id LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT w.thread_id FROM {schema}.writes w
        WHERE w.channel = '__interrupt__' AND w.checkpoint_ns = '' AND w.thread_id > t.thread_id
        ORDER BY w.thread_id LIMIT 1
    ) FROM t WHERE t.thread_id IS NOT NULL
"""
    + _FROM_WAITING
)

LIST_WAITING_IN_THREAD = Statement(
    "WITH t AS (SELECT %(thread_id)s::text AS thread_id WHERE %(thread_id)s::text > %(after)s::text"
    + _FROM_WAITING
)

# The effects that questions name, and which tasks asked about them.
LIST_ASKED = Statement("SELECT effect_id, asked FROM {schema}.effects WHERE effect_id = ANY (%s::uuid[])")


# --- what happened in a thread ---

# A ULID is a namespace's own: two of them may have made the same at once, and stand on one page (WITH TIES).
# The kinds of rows that a page of steps gives. Columns: kind, checkpoint_ns, checkpoint_id, then by kind
#   STEP     parent_checkpoint_id, run_id, -, ulid, created_at, type, checkpoint, metadata_type, metadata, -
#   WRITTEN  task_path, task_id, channel, -, stored_at, type, value, -, -, idx
STEP, WRITTEN = range(2)

LIST_STEPS = Statement("""
WITH page AS MATERIALIZED (
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, ulid, created_at, type, checkpoint,
        metadata_type, metadata
    FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND ulid IS NOT NULL AND ulid > %(after)s::uuid
    ORDER BY ulid FETCH FIRST (%(size)s::int) ROWS WITH TIES
)
SELECT 0, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, NULL::text, ulid, created_at, type, checkpoint,
    metadata_type, metadata, NULL::int
FROM page
UNION ALL
SELECT 1, p.checkpoint_ns, p.checkpoint_id, w.task_path, w.task_id, w.channel, NULL,
    w.stored_at, w.type, w.value, NULL, NULL, w.idx
FROM page p CROSS JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = %(thread_id)s::text AND w.checkpoint_ns = p.checkpoint_ns
    AND w.checkpoint_id = p.checkpoint_id
    OFFSET 0
) w
""")

# The arguments go with what begins an attempt, and with nothing else.
LIST_THREAD_EVENTS = Statement("""
SELECT v.at, v.number, v.from_state, v.to_state, v.attempt, v.actor, v.reason, e.effect_id, e.tool, e.tool_call_id,
    e.checkpoint_ns, e.checkpoint_id, e.run_id, CASE WHEN v.to_state IN ('claimed', 'issued') THEN e.input_type END,
    CASE WHEN v.to_state IN ('claimed', 'issued') THEN e.input END
FROM {schema}.effects e JOIN {schema}.effect_events v USING (effect_id)
WHERE e.thread_id = %(thread_id)s::text
AND (%(after)s::uuid IS NULL OR (v.at, v.number) > (
    SELECT at, number FROM {schema}.effect_events
    WHERE effect_id = %(after)s::uuid AND number = %(after_number)s::bigint
))
ORDER BY v.at, v.number LIMIT %(size)s::int
""")
