-- The threads of langgraph-checkpoint-postgres.
-- No parameters. Columns: thread_id.
SELECT DISTINCT thread_id COLLATE "C" FROM {schema}.checkpoints ORDER BY 1
