-- Which of some threads have rows here, or were deleted here.
-- Parameters: threads. Columns: thread_id, has_rows, deleted.
SELECT * FROM (
    SELECT t AS thread_id,
        EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = t)
            OR EXISTS (SELECT FROM {schema}.writes w WHERE w.thread_id = t) AS has_rows,
        EXISTS (SELECT FROM {schema}.tombstones d WHERE d.thread_id = t) AS deleted
    FROM unnest(%(threads)s::text[]) AS t
) known
WHERE has_rows OR deleted
