-- Record that an effect took place, as its owner reports it: the common move, at half the cost of move.sql.
--
-- Parameters: effect_id, from (text[]), fence, result_type, result, output_hash, actor, reason.
-- Columns: previous_state, expired_at, now. No row: the effect was not moved.
WITH e AS (
    UPDATE {schema}.effects SET
        previous_state = state, state = 'completed', lease_until = NULL, ended_at = now(), source = 'executed',
        result_lost = false, error = NULL,
        -- An effect that ends after its thread was deleted stores no payloads.
        result_type = CASE WHEN expired_at IS NULL THEN %(result_type)s::text END,
        result = CASE WHEN expired_at IS NULL THEN %(result)s::bytea END, output_hash = %(output_hash)s::bytea
    WHERE effect_id = %(effect_id)s::uuid AND state = ANY (%(from)s::text[]) AND fence = %(fence)s::bigint
    RETURNING effect_id, previous_state, fence, attempts, expired_at
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, previous_state, 'completed', fence, attempts, %(actor)s::text,
        CASE WHEN expired_at IS NULL THEN %(reason)s::text END
    FROM e WHERE {flush_at_commit}
)
SELECT previous_state, expired_at, now() FROM e
