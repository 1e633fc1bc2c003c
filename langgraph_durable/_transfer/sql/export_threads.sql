-- The threads to export.
-- No parameters. Columns: thread_id.
SELECT DISTINCT thread_id FROM {schema}.checkpoints ORDER BY 1
