-- Record that checkpoints of a thread were pruned.
-- Parameters: thread.
INSERT INTO {schema}.prunes (thread_id) VALUES (%(thread)s::text)
ON CONFLICT (thread_id) DO UPDATE SET pruned_at = now()
