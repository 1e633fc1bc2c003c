-- List the checkpoints that lead to one, in several graphs, and what tasks wrote in their steps that were abandoned.
--
-- A step was abandoned if the next checkpoint of the branch does not come from it (source 'loop'), but from an input, an
-- update or a fork. Its tasks' writes never reached the state.
--
-- Parameters: thread_id, namespaces (text[]), checkpoint_ids (text[], parallel; NULL: the latest. One that is not stored
-- yet counts as following the latest), is_running (whether the steps of these checkpoints are running, and not
-- abandoned).
--
-- Columns: checkpoint_ns, checkpoint_id, source of the next checkpoint (NULL: not known, or there is none), task_id,
-- task_path, idx, channel, type, value. The last six are NULL for a checkpoint without such writes.
--
-- OFFSET 0 keeps the planner from joining whole threads: without statistics it takes a thread for a few rows.
WITH RECURSIVE start AS (
    SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.metadata_index ->> 'source' AS source,
        CASE WHEN %(is_running)s::bool AND c.checkpoint_id = g.checkpoint_id THEN 'loop' END AS next_source
    FROM unnest(%(namespaces)s::text[], %(checkpoint_ids)s::text[]) AS g (checkpoint_ns, checkpoint_id)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT n.checkpoint_id FROM {schema}.checkpoints n WHERE n.thread_id = %(thread_id)s::text
            AND n.checkpoint_ns = g.checkpoint_ns AND n.checkpoint_id = g.checkpoint_id),
            (SELECT n.checkpoint_id FROM {schema}.checkpoints n WHERE n.thread_id = %(thread_id)s::text
            AND n.checkpoint_ns = g.checkpoint_ns AND n.ulid IS NOT NULL ORDER BY n.ulid DESC LIMIT 1)
        ) AS checkpoint_id
        OFFSET 0
    ) last
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.checkpoints c
        WHERE c.thread_id = %(thread_id)s::text AND c.checkpoint_ns = g.checkpoint_ns
        AND c.checkpoint_id = last.checkpoint_id
        OFFSET 0
    ) c
), branch AS (
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, source, next_source FROM start
    UNION ALL
    SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.metadata_index ->> 'source', b.source
    FROM branch b CROSS JOIN LATERAL (
        SELECT * FROM {schema}.checkpoints c
        WHERE c.thread_id = %(thread_id)s::text AND c.checkpoint_ns = b.checkpoint_ns
        AND c.checkpoint_id = b.parent_checkpoint_id
        OFFSET 0
    ) c
)
SELECT b.checkpoint_ns, b.checkpoint_id, b.next_source, w.task_id, w.task_path, w.idx, w.channel, w.type, w.value
FROM branch b LEFT JOIN LATERAL (
    SELECT * FROM {schema}.writes w
    WHERE w.thread_id = %(thread_id)s::text AND w.checkpoint_ns = b.checkpoint_ns
    AND w.checkpoint_id = b.checkpoint_id AND w.idx >= 0 AND b.next_source IS DISTINCT FROM 'loop'
    -- Not the channels of LangGraph's own, except the one of a task's return value.
    AND (NOT starts_with(w.channel, '__') OR w.channel = '__return__') AND NOT starts_with(w.channel, 'branch:')
    OFFSET 0
) w ON true
