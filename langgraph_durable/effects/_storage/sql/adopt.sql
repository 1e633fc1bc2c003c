-- Create a call's effect with the outcome of a candidate, which no other call gets after that. If the call has one that
-- failed, that one gets the outcome.
--
-- Two calls may want one candidate. Its note count decides: a call that read an older one changes nothing.
--
-- Parameters: candidate (its id), note_count (the candidate's, as read), effect_id (the new effect's), scope_thread,
-- key, thread_id, checkpoint_ns, checkpoint_id, checkpoints, task_id, run_id, message_id, tool_call_id, outer_id, tool,
-- scope, input_hash, input_type, input, actor, reason.
-- Columns: those of an EffectRow: the call's effect. No row: the candidate was taken, or the call's effect may not
-- have another outcome.
WITH taken AS (
    UPDATE {schema}.effects SET note_count = note_count + 1
    WHERE effect_id = %(candidate)s::uuid AND state = 'completed' AND note_count = %(note_count)s::int
    RETURNING *
), e AS (
    INSERT INTO {schema}.effects AS mine (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, checkpoints, task_id,
        run_id, message_id, tool_call_id, outer_id, tool, scope, input_hash, input_type, input, state, generation,
        attempts, owner, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost, output_hash, source,
        error, origin, expired_at
    )
    SELECT %(effect_id)s::uuid, %(scope_thread)s::text, %(key)s::bytea, t.vendor_seed, %(thread_id)s::text,
        %(checkpoint_ns)s::text, %(checkpoint_id)s::text, %(checkpoints)s::jsonb, %(task_id)s::text, %(run_id)s::text,
        %(message_id)s::text, %(tool_call_id)s::text, %(outer_id)s::uuid, %(tool)s::text, %(scope)s::text,
        %(input_hash)s::bytea, %(input_type)s::text, %(input)s::bytea, t.state, t.generation, t.attempts, t.owner,
        t.first_attempt_at, t.attempted_at, t.ended_at, t.result_type, t.result, t.result_lost, t.output_hash,
        t.source, t.error, t.effect_id, t.expired_at
    FROM taken t
    ON CONFLICT (scope_thread, key) DO UPDATE SET
        previous_state = mine.state, state = excluded.state, fence = mine.fence + 1, generation = excluded.generation,
        vendor_seed = excluded.vendor_seed, owner = excluded.owner, lease_until = NULL,
        checkpoint_ns = excluded.checkpoint_ns, checkpoint_id = excluded.checkpoint_id,
        checkpoints = excluded.checkpoints, task_id = excluded.task_id, run_id = excluded.run_id,
        attempts = excluded.attempts, first_attempt_at = excluded.first_attempt_at,
        attempted_at = excluded.attempted_at, ended_at = excluded.ended_at,
        input_type = excluded.input_type, input = excluded.input,
        result_type = excluded.result_type, result = excluded.result, result_lost = excluded.result_lost,
        output_hash = excluded.output_hash, source = excluded.source, error = excluded.error,
        origin = excluded.origin, expired_at = excluded.expired_at, keeps_key = false
    WHERE mine.state = 'failed' AND mine.input_hash = excluded.input_hash
    RETURNING *
), note AS (
    INSERT INTO {schema}.effect_notes (effect_id, kind, task_id, token)
    SELECT origin, 'adopted', task_id, effect_id::text FROM e
), large AS (
    INSERT INTO {schema}.effect_results (effect_id, type, data)
    SELECT e.effect_id, r.type, r.data FROM e JOIN {schema}.effect_results r ON r.effect_id = e.origin
    ON CONFLICT (effect_id) DO UPDATE SET type = excluded.type, data = excluded.data
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, previous_state, state, fence, attempts, %(actor)s::text, %(reason)s::text
    FROM e WHERE {flush_at_commit}
)
SELECT {effect_columns} FROM e
