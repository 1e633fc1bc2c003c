-- The next threads in the order of their ids: one index lookup per thread, where DISTINCT would read every checkpoint.
-- Parameters: after (a thread_id), count. Columns: thread_id.
WITH RECURSIVE t AS (
    (SELECT thread_id FROM {schema}.checkpoints WHERE thread_id > %(after)s::text ORDER BY thread_id LIMIT 1)
    UNION ALL
    SELECT (SELECT c.thread_id FROM {schema}.checkpoints c WHERE c.thread_id > t.thread_id ORDER BY thread_id LIMIT 1)
    FROM t WHERE t.thread_id IS NOT NULL
)
SELECT thread_id FROM t WHERE thread_id IS NOT NULL LIMIT %(count)s::int
