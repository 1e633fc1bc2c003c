-- A page of the threads that wait for a human, with the writes that ask: by LangGraph's own rule (read_task_statuses in
-- langgraph/pregel/_task_status.py), those of tasks that have written nothing but errors, interrupts and answers, on
-- the latest checkpoint of the root graph. Task id 0 is the input of a step, not a task.
--
-- One index lookup for each thread that ever asked, until the page is full. Scalar subqueries and LIMITs keep every plan
-- from reading whole tables first. A subgraph's question is also written on the root graph's checkpoint; the subgraph's
-- own checkpoints are newer and only show where it was asked.
--
-- Parameters: thread_id (only this thread; NULL for all), after (a thread_id), size (a number of threads).
-- Columns: thread_id, checkpoint_ns, checkpoint_id, task_path, task_id, idx, type, value, stored_at, created_at (of the
-- checkpoint), now.
WITH RECURSIVE t AS (
    SELECT coalesce(%(thread_id)s::text, (
        SELECT thread_id FROM {schema}.writes
        WHERE channel = '__interrupt__' AND checkpoint_ns = '' AND thread_id > %(after)s::text
        ORDER BY thread_id LIMIT 1
    )) AS thread_id
    WHERE %(thread_id)s::text IS NULL OR %(thread_id)s::text > %(after)s::text
    UNION ALL
    SELECT (
        SELECT w.thread_id FROM {schema}.writes w
        WHERE w.channel = '__interrupt__' AND w.checkpoint_ns = '' AND w.thread_id > t.thread_id
        ORDER BY w.thread_id LIMIT 1
    ) FROM t WHERE t.thread_id IS NOT NULL AND %(thread_id)s::text IS NULL
), waiting AS MATERIALIZED (
    SELECT h.* FROM t CROSS JOIN LATERAL (
        SELECT thread_id, checkpoint_id, ulid, created_at FROM {schema}.checkpoints c
        WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.ulid IS NOT NULL
        ORDER BY c.ulid DESC LIMIT 1
    ) h
    WHERE (
        SELECT 1 FROM {schema}.writes w
        WHERE w.thread_id = h.thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = h.checkpoint_id
        AND w.channel = '__interrupt__' AND w.task_id <> '00000000-0000-0000-0000-000000000000' AND (
            SELECT 1 FROM {schema}.writes o
            WHERE o.thread_id = w.thread_id AND o.checkpoint_ns = w.checkpoint_ns AND o.checkpoint_id = w.checkpoint_id
            AND o.task_id = w.task_id
            AND o.channel NOT IN ('__error__', '__error_source_node__', '__interrupt__', '__resume__')
            LIMIT 1
        ) IS NULL
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
    WHERE w.thread_id = a.thread_id AND w.checkpoint_ns = a.checkpoint_ns AND w.checkpoint_id = a.checkpoint_id
    AND w.channel = '__interrupt__' AND w.task_id <> '00000000-0000-0000-0000-000000000000' AND (
        SELECT 1 FROM {schema}.writes o
        WHERE o.thread_id = w.thread_id AND o.checkpoint_ns = w.checkpoint_ns AND o.checkpoint_id = w.checkpoint_id
        AND o.task_id = w.task_id
        AND o.channel NOT IN ('__error__', '__error_source_node__', '__interrupt__', '__resume__')
        LIMIT 1
    ) IS NULL
    OFFSET 0
) w
