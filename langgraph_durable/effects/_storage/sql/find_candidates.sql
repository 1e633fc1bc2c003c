-- Find the effects whose outcome a call may be asking for again: undelivered ones first, then those on other branches,
-- oldest first.
--
-- An effect inside another one is delivered with that one, which is not completed. If its step ended all the same, the
-- node caught the outer effect's error.
--
-- Parameters: those of candidate.sql and of relations.sql, and limit.
-- Columns: relation, then those of an EffectRow.
WITH RECURSIVE effect AS MATERIALIZED (
    SELECT e.* FROM {schema}.effects e WHERE {candidate}
),
{relations}
SELECT r.relation, {effect_columns}
FROM (
    SELECT effect_id, CASE WHEN relation = 'delivered' AND outer_id IS NOT NULL THEN 'undelivered' ELSE relation END
        AS relation
    FROM related JOIN effect USING (effect_id)
) AS r JOIN {schema}.effects e USING (effect_id)
WHERE r.relation IN ('undelivered', 'fork')
ORDER BY r.relation = 'fork', e.effect_id LIMIT %(limit)s::bigint
