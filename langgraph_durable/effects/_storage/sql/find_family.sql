-- Find effects by their keys, with their relations to a call.
--
-- Parameters: scope_thread, keys (bytea[]), and those of relations.sql.
-- Columns: relation, then those of an EffectRow.
WITH RECURSIVE effect AS MATERIALIZED (
    SELECT * FROM {schema}.effects WHERE scope_thread = %(scope_thread)s::text AND key = ANY (%(keys)s::bytea[])
),
{relations}
SELECT r.relation, {effect_columns}
FROM related r JOIN {schema}.effects e USING (effect_id)
