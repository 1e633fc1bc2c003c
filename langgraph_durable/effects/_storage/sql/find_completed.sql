-- Find a completed effect by its key: all that a replay needs. The other columns of an EffectRow are NULL, because
-- reading them would cost a third of a replay.
--
-- Parameters: scope_thread, key. Columns: those of an EffectRow.
SELECT e.effect_id, e.tool, e.state, NULL AS previous_state, e.scope, e.thread_id, NULL AS checkpoint_ns,
    NULL AS checkpoint_id, e.task_id, NULL AS run_id, NULL AS message_id, NULL AS tool_call_id, e.attempts, e.generation,
    e.fence, NULL AS owner, e.first_attempt_at, NULL AS attempted_at, NULL AS ended_at, e.source, e.error, e.result_lost,
    e.key, e.vendor_seed, e.input_hash, NULL AS input_type, NULL AS input, e.result_type, e.result,
    NULL AS output_hash, NULL AS lease_until, e.expired_at, NULL AS claim_id, e.keeps_key, NULL AS now, e.note_count,
    NULL AS notes
FROM {schema}.effects e
WHERE e.scope_thread = %(scope_thread)s::text AND e.key = %(key)s::bytea AND e.state = 'completed'
