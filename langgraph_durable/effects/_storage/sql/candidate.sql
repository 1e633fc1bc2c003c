-- Fragment: whether an effect e is a candidate for a call that has no effect under its key: the same tool, arguments
-- and place, completed or waiting for a human, asked for by another task, and neither taken by another call nor
-- acknowledged.
--
-- Parameters: thread_id, scope_thread, key, tool, input_hash, task_id, and those of same_place.sql.
e.thread_id = %(thread_id)s::text AND e.tool = %(tool)s::text AND e.input_hash = %(input_hash)s::bytea
AND e.scope_thread = %(scope_thread)s::text AND e.scope = 'call'
-- A body that waited before it was issued sent nothing.
AND (e.state = 'completed' OR e.state = 'suspended' AND e.previous_state IS DISTINCT FROM 'claimed')
AND e.task_id <> %(task_id)s::text AND e.key <> %(key)s::bytea
AND {same_place}
AND (e.note_count = 0 OR NOT EXISTS (
    SELECT FROM {schema}.effect_notes n
    WHERE n.effect_id = e.effect_id AND n.kind IN ('adopted', 'acknowledged')
))
