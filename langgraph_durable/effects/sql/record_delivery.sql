-- Record that a task was given the outcome of an effect that it did not carry out, once for each task.
--
-- Parameters: effect_id, task_id, checkpoint_ns, checkpoints (JSON). Columns: none.
INSERT INTO {schema}.effect_deliveries (effect_id, task_id, checkpoint_ns, checkpoints)
SELECT %(effect_id)s::uuid, %(task_id)s::text, %(checkpoint_ns)s::text, %(checkpoints)s::jsonb
WHERE {flush_at_commit}
ON CONFLICT DO NOTHING
