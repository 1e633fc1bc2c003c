-- Get the channels of a task's pending writes.
--
-- Parameters: thread_id, checkpoint_ns, checkpoint_id, task_id. Columns: channel.
SELECT channel FROM {schema}.writes
WHERE thread_id = %s::text AND checkpoint_ns = %s::text AND checkpoint_id = %s::text AND task_id = %s::text
