-- Find the effects whose outcome a call may be asking for again: undelivered ones first, then those on other branches,
-- oldest first.
--
-- Parameters: those of candidate.sql and of relations.sql, and limit.
-- Columns: relation, then those of an EffectRow.
WITH RECURSIVE effect AS MATERIALIZED (
    SELECT e.* FROM {schema}.effects e WHERE {candidate}
),
{relations}
SELECT r.relation, {effect_columns}
FROM related r JOIN {schema}.effects e USING (effect_id)
WHERE r.relation IN ('undelivered', 'fork')
ORDER BY r.relation = 'fork', e.effect_id LIMIT %(limit)s::bigint
