-- Fragment: whether an effect e was called at the same place in the graph as a call: the same path, and in the body of
-- an equal outer effect, or of none.
--
-- The path is the namespace without the ids of tasks and the counters of nested graphs. What a completed outer effect
-- did inside is done: a call asks for the outer effect's outcome, or for all of it once more.
--
-- Parameters: checkpoint_ns, outer_id (the effect whose body makes the call; NULL if none does).
regexp_replace(regexp_replace(e.checkpoint_ns, '\|[0-9]+(?=\||$)', '', 'g'), ':[^|]*', '', 'g')
    = regexp_replace(regexp_replace(%(checkpoint_ns)s::text, '\|[0-9]+(?=\||$)', '', 'g'), ':[^|]*', '', 'g')
AND CASE WHEN %(outer_id)s::uuid IS NULL THEN e.outer_id IS NULL ELSE EXISTS (
    SELECT FROM {schema}.effects theirs JOIN {schema}.effects mine USING (tool, input_hash)
    WHERE theirs.effect_id = e.outer_id AND mine.effect_id = %(outer_id)s::uuid
    AND theirs.state <> 'completed'
) END
