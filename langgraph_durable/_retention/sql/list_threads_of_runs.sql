-- The threads in which runs made checkpoints.
-- Parameters: an array of run ids. Columns: thread_id.
SELECT DISTINCT thread_id FROM {schema}.checkpoints WHERE run_id = ANY (%s::text[]) ORDER BY thread_id
