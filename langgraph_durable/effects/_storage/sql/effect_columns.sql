-- Fragment: the columns of an effect e, in the order of EffectRow. Its notes are looked for only if it has any.
e.effect_id, e.tool, e.state, e.previous_state, e.scope, e.thread_id, e.checkpoint_ns, e.checkpoint_id, e.task_id,
    e.run_id, e.message_id, e.tool_call_id, e.attempts, e.generation, e.fence, e.owner, e.first_attempt_at,
    e.attempted_at, e.ended_at, e.source, e.error, e.result_lost, e.key, e.vendor_seed, e.input_hash, e.input_type,
    e.input, e.result_type, e.result, e.output_hash, e.lease_until, e.expired_at, e.claim_id, e.keeps_key,
    now() AS now, e.note_count,
    CASE WHEN e.note_count > 0 THEN (
        SELECT json_agg(json_build_array(n.kind, n.task_id, n.fence, n.token))
        FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id
    ) END AS notes
