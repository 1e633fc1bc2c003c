-- A page of the effect events of a thread, oldest first. Arguments are returned only with events that start an attempt.
-- Parameters: thread_id; after, after_number (an effect's id and the number of its event; after may be NULL); size.
-- Columns: at, number, from_state, to_state, attempt, actor, reason, effect_id, tool, tool_call_id, checkpoint_ns,
-- checkpoint_id, run_id, input_type, input.
SELECT v.at, v.number, v.from_state, v.to_state, v.attempt, v.actor, v.reason, e.effect_id, e.tool, e.tool_call_id,
    e.checkpoint_ns, e.checkpoint_id, e.run_id, CASE WHEN v.to_state IN ('claimed', 'issued') THEN e.input_type END,
    CASE WHEN v.to_state IN ('claimed', 'issued') THEN e.input END
FROM {schema}.effects e JOIN {schema}.effect_events v USING (effect_id)
WHERE e.thread_id = %(thread_id)s::text
AND (%(after)s::uuid IS NULL OR (v.at, v.number) > (
    SELECT at, number FROM {schema}.effect_events
    WHERE effect_id = %(after)s::uuid AND number = %(after_number)s::bigint
))
ORDER BY v.at, v.number LIMIT %(size)s::int
