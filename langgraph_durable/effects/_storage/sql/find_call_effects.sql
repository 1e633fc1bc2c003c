-- Find the effects of tool calls of a thread, oldest first.
--
-- Effects that another effect's body called are not those of a tool call.
--
-- Parameters: thread_id, message_ids (text[]), tool_call_ids (text[]). Columns: those of an EffectRow.
SELECT {effect_columns}
FROM {schema}.effects e
WHERE e.thread_id = %(thread_id)s::text AND e.tool_call_id = ANY (%(tool_call_ids)s::text[])
AND (e.message_id IS NULL OR e.message_id = ANY (%(message_ids)s::text[]))
AND e.outer_id IS NULL
ORDER BY e.effect_id
