-- List effects, oldest first. A filter that is NULL matches everything.
--
-- Parameters: states (text[]), known (text[]; if given, states that are not among these match too), tool, thread_id,
-- run_id, after (an effect's id, to continue after it), limit. Columns: those of an EffectRow.
SELECT {effect_columns}
FROM {schema}.effects e
WHERE (
    %(states)s::text[] IS NULL OR e.state = ANY (%(states)s::text[]) OR e.state <> ALL (%(known)s::text[])
)
AND (%(tool)s::text IS NULL OR e.tool = %(tool)s::text)
AND (%(thread_id)s::text IS NULL OR e.thread_id = %(thread_id)s::text)
AND (%(run_id)s::text IS NULL OR e.run_id = %(run_id)s::text)
AND (%(after)s::uuid IS NULL OR e.effect_id > %(after)s::uuid)
ORDER BY e.effect_id LIMIT %(limit)s::bigint
