-- Add to an effect's notes, each of them once.
--
-- Parameters: effect_id, notes (JSON array of objects with kind, task_id, fence, token). Columns: none.
WITH added AS (
    INSERT INTO {schema}.effect_notes (effect_id, kind, task_id, fence, token)
    SELECT %(effect_id)s::uuid, n.kind, n.task_id, n.fence, n.token
    FROM json_to_recordset(%(notes)s::json) AS n (kind text, task_id text, fence bigint, token text)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
UPDATE {schema}.effects SET note_count = note_count + (SELECT count(*) FROM added)
WHERE effect_id = %(effect_id)s::uuid AND {flush_at_commit}
