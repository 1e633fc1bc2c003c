-- Get a result that is stored apart from its effect.
--
-- Parameters: effect_id. Columns: data.
SELECT data FROM {schema}.effect_results WHERE effect_id = %s::uuid
