-- The number of effects that expire_effects.sql would change.
-- Parameters: older_than. Columns: count.
SELECT count(*) FROM {schema}.effects
WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
AND expired_at IS NULL
