-- Give a completed effect the result that could not be stored, or that has expired. Its state stays.
--
-- Parameters: effect_id, result_type, result, large (the result, if it goes to effect_results), output_hash, actor,
-- reason.
--
-- Columns: those of an EffectRow. No row: the effect is not completed, or has its result.
WITH e AS (
    UPDATE {schema}.effects e SET
        result_type = %(result_type)s::text, result = %(result)s::bytea, output_hash = %(output_hash)s::bytea,
        result_lost = false, error = NULL, expired_at = NULL
    WHERE effect_id = %(effect_id)s::uuid AND state = 'completed' AND (result_lost OR expired_at IS NOT NULL)
    RETURNING *
), large AS (
    INSERT INTO {schema}.effect_results (effect_id, type, data)
    SELECT effect_id, %(result_type)s::text, %(large)s::bytea FROM e WHERE %(large)s::bytea IS NOT NULL
    ON CONFLICT (effect_id) DO UPDATE SET type = excluded.type, data = excluded.data
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, state, state, fence, attempts, %(actor)s::text, %(reason)s::text
    FROM e WHERE {flush_at_commit}
)
SELECT {effect_columns} FROM e
