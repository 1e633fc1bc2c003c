-- List the effects that an earlier execution of a task made, with other arguments than a call that is new.
--
-- Parameters: scope_thread and key (of the call), thread_id, task_id, outer_id (the effect whose body makes the call;
-- NULL for a call of the task itself), tool, input_hash. Columns: those of an EffectRow.
--
-- Of the task's effects, those of the model's tool calls are left out: their arguments are not in their keys. An effect
-- that a human dealt with, or whose outcome another call took, is not waited for.
SELECT {effect_columns}
FROM {schema}.effects e
WHERE (e.thread_id = %(thread_id)s::text OR %(thread_id)s::text IS NULL AND e.scope_thread = '')
AND e.scope = 'call' AND e.tool = %(tool)s::text AND e.input_hash <> %(input_hash)s::bytea
AND e.state IN ('completed', 'issued', 'unknown', 'suspended')
AND e.message_id IS NULL AND e.tool_call_id IS NULL
AND CASE WHEN %(outer_id)s::uuid IS NOT NULL THEN e.outer_id = %(outer_id)s::uuid
    ELSE e.outer_id IS NULL AND e.task_id = %(task_id)s::text END
AND NOT EXISTS (
    SELECT FROM {schema}.effects made WHERE made.scope_thread = %(scope_thread)s::text AND made.key = %(key)s::bytea
)
AND NOT EXISTS (
    SELECT FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id AND n.kind IN ('adopted', 'acknowledged')
)
ORDER BY e.effect_id
