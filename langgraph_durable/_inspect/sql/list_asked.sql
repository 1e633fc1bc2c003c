-- Which tasks asked a human about effects; NULL stands for a note of an unknown kind.
-- Parameters: an array of effect ids. Columns: effect_id, an array of task ids.
SELECT effect_id, array_agg(CASE
    WHEN kind IN ('question', 'answer', 'waiting', 'refused', 'fork', 'decision') THEN task_id
END)
FROM {schema}.effect_notes WHERE effect_id = ANY (%s::uuid[]) GROUP BY effect_id
