-- The number of threads with checkpoints.
-- Columns: count.
SELECT count(DISTINCT thread_id) FROM {schema}.checkpoints
