-- Fragment: whether an effect e is a candidate for a call that has no effect under its key: the same tool, arguments
-- and path, completed or waiting for a human, asked for by another task, and neither taken by another call nor
-- acknowledged.
--
-- The path is the namespace without the ids of tasks and the counters of nested graphs. The effects inside another
-- effect are not candidates: their outer effect is.
--
-- Parameters: thread_id, scope_thread, key, tool, input_hash, task_id, checkpoint_ns.
e.thread_id = %(thread_id)s::text AND e.tool = %(tool)s::text AND e.input_hash = %(input_hash)s::bytea
AND e.scope_thread = %(scope_thread)s::text AND e.scope = 'call' AND e.outer_id IS NULL
-- A body that waited before it was issued sent nothing.
AND (e.state = 'completed' OR e.state = 'suspended' AND e.previous_state IS DISTINCT FROM 'claimed')
AND e.task_id <> %(task_id)s::text AND e.key <> %(key)s::bytea
AND regexp_replace(regexp_replace(e.checkpoint_ns, '\|[0-9]+(?=\||$)', '', 'g'), ':[^|]*', '', 'g')
    = regexp_replace(regexp_replace(%(checkpoint_ns)s::text, '\|[0-9]+(?=\||$)', '', 'g'), ':[^|]*', '', 'g')
AND (e.note_count = 0 OR NOT EXISTS (
    SELECT FROM {schema}.effect_notes n
    WHERE n.effect_id = e.effect_id AND n.kind IN ('adopted', 'acknowledged')
))
