-- Get an effect by its id.
--
-- Parameters: effect_id. Columns: those of an EffectRow.
SELECT {effect_columns} FROM {schema}.effects e WHERE e.effect_id = %(effect_id)s::uuid
