-- Claim an effect of which nothing is known: the common case, at half the cost of claim.sql.
--
-- Parameters: those of claim.sql but resumes and reason. With check_duplicates or check_candidates, any effect of the
-- same thread, tool and arguments keeps this one from being created.
--
-- Columns: lease_until, now. No row: the effect, or an equal one, exists. claim.sql finds out what that means.
WITH created AS (
    INSERT INTO {schema}.effects (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, checkpoints, task_id,
        run_id, message_id, tool_call_id, outer_id, tool, scope, input_hash, input_type, input, state,
        owner, lease_until
    )
    SELECT %(effect_id)s::uuid, %(scope_thread)s::text, %(key)s::bytea, %(vendor_seed)s::bytea, %(thread_id)s::text,
        %(checkpoint_ns)s::text, %(checkpoint_id)s::text, %(checkpoints)s::jsonb, %(task_id)s::text, %(run_id)s::text,
        %(message_id)s::text, %(tool_call_id)s::text, %(outer_id)s::uuid, %(tool)s::text, %(scope)s::text,
        %(input_hash)s::bytea, %(input_type)s::text, %(input)s::bytea, %(state)s::text,
        %(actor)s::text, now() + %(lease)s::interval
    WHERE NOT ((%(check_duplicates)s::bool OR %(check_candidates)s::bool) AND EXISTS (
        SELECT FROM {schema}.effects
        WHERE thread_id = %(thread_id)s::text AND tool = %(tool)s::text AND input_hash = %(input_hash)s::bytea
    ))
    ON CONFLICT DO NOTHING
    RETURNING effect_id, state, owner, lease_until
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, to_state, fence, attempt, actor)
    SELECT effect_id, state, 1, 1, owner FROM created WHERE {flush_at_commit}
)
SELECT lease_until, now() FROM created
