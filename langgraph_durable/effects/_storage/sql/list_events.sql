-- List the history of an effect, oldest first.
--
-- Parameters: effect_id. Columns: number, at, from_state, to_state, fence, attempt, actor, reason.
SELECT number, at, from_state, to_state, fence, attempt, actor, reason FROM {schema}.effect_events
WHERE effect_id = %s::uuid ORDER BY number
