-- Note that a human dealt with an effect, so that no later call is taken for it.
--
-- Parameters: effect_id, actor, reason. Columns: effect_id. No row: there is no such effect, or it was acknowledged.
WITH e AS (
    UPDATE {schema}.effects SET note_count = note_count + 1
    WHERE effect_id = %(effect_id)s::uuid AND NOT EXISTS (
        SELECT FROM {schema}.effect_notes WHERE effect_id = %(effect_id)s::uuid AND kind = 'acknowledged'
    )
    RETURNING effect_id, state, fence, attempts
), note AS (
    INSERT INTO {schema}.effect_notes (effect_id, kind) SELECT effect_id, 'acknowledged' FROM e ON CONFLICT DO NOTHING
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, state, state, fence, attempts, %(actor)s::text, %(reason)s::text
    FROM e WHERE {flush_at_commit}
)
SELECT effect_id FROM e
