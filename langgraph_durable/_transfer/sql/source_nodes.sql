-- The checkpoints of a thread of langgraph-checkpoint-postgres, without what they hold.
-- Parameters: thread. Columns: checkpoint_ns, checkpoint_id, parent_checkpoint_id.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
