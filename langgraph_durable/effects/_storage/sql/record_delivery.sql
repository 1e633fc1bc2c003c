-- Record that a task was given the outcome of an effect that it did not carry out.
--
-- The note count rises too, so that of two calls that read the same one, only one records its delivery.
--
-- Parameters: effect_id, note_count (the effect's, as read; NULL: any), task_id, checkpoint_ns, checkpoints (JSON).
-- Columns: effect_id. No row: the note count was another one.
WITH known AS MATERIALIZED (
    SELECT effect_id FROM {schema}.effect_deliveries
    WHERE effect_id = %(effect_id)s::uuid AND task_id = %(task_id)s::text
), e AS (
    UPDATE {schema}.effects SET note_count = note_count + 1
    WHERE effect_id = %(effect_id)s::uuid AND NOT EXISTS (SELECT FROM known)
    AND (%(note_count)s::int IS NULL OR note_count = %(note_count)s::int)
    RETURNING effect_id
), delivery AS (
    INSERT INTO {schema}.effect_deliveries (effect_id, task_id, checkpoint_ns, checkpoints)
    SELECT effect_id, %(task_id)s::text, %(checkpoint_ns)s::text, %(checkpoints)s::jsonb
    FROM e WHERE {flush_at_commit}
    ON CONFLICT DO NOTHING
)
SELECT effect_id FROM e
UNION ALL
SELECT effect_id FROM known
