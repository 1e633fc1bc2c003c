-- Which tasks asked about effects.
-- Parameters: an array of effect ids. Columns: effect_id, asked.
SELECT effect_id, asked FROM {schema}.effects WHERE effect_id = ANY (%s::uuid[])
