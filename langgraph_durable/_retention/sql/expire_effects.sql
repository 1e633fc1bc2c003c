-- Remove the arguments, results, errors and notes of effects that ended long ago. The fact that they ran stays.
-- Parameters: older_than. Columns: effect_id.
WITH large AS (
    DELETE FROM {schema}.effect_results r USING {schema}.effects e
    WHERE r.effect_id = e.effect_id AND e.state IN ('completed', 'failed', 'abandoned')
    AND e.ended_at < now() - %(older_than)s::interval
), expired AS (
    UPDATE {schema}.effects SET input_type = NULL, input = NULL, result = NULL, error = NULL, expired_at = now()
    WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
    AND expired_at IS NULL
    RETURNING effect_id
), events AS (
    UPDATE {schema}.effect_events SET reason = NULL
    WHERE reason IS NOT NULL AND effect_id IN (SELECT effect_id FROM expired)
)
SELECT effect_id FROM expired
