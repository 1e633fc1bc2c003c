-- Find a completed effect by its key: all that a replay needs.
--
-- Parameters: scope_thread, key. Columns: those of an EffectRow.
SELECT {effect_columns}
FROM {schema}.effects e
WHERE e.scope_thread = %(scope_thread)s::text AND e.key = %(key)s::bytea AND e.state = 'completed'
