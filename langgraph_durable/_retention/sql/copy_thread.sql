-- Copy a thread, unless the target has checkpoints.
-- One statement has one snapshot: a source that a run is writing is copied as of one moment.
-- Parameters: source, target.
-- Columns: whether the target was taken, number of checkpoints copied.
WITH taken AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = %(target)s::text) AS taken
), c AS (
    INSERT INTO {schema}.checkpoints
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, ulid, created_at, parent_checkpoint_id,
        root_checkpoint_id, run_id, format, type, checkpoint, metadata_type, metadata, metadata_index,
        value_channels, value_versions, delta_channels
    FROM {schema}.checkpoints, taken WHERE thread_id = %(source)s::text AND NOT taken
    RETURNING 1
), a AS (
    INSERT INTO {schema}.ancestors
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
        value_channels, value_versions
    FROM {schema}.ancestors, taken WHERE thread_id = %(source)s::text AND NOT taken
), v AS (
    INSERT INTO {schema}.channel_values
    SELECT %(target)s::text, checkpoint_ns, channel, version, type, data, segments
    FROM {schema}.channel_values, taken WHERE thread_id = %(source)s::text AND NOT taken
), s AS (
    INSERT INTO {schema}.segments
    SELECT %(target)s::text, hash, data
    FROM {schema}.segments, taken WHERE thread_id = %(source)s::text AND NOT taken
), w AS (
    INSERT INTO {schema}.writes
    SELECT %(target)s::text, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, value, stored_at
    FROM {schema}.writes, taken WHERE thread_id = %(source)s::text AND NOT taken
    ON CONFLICT DO NOTHING
), p AS (
    INSERT INTO {schema}.prunes
    SELECT %(target)s::text, pruned_at
    FROM {schema}.prunes, taken WHERE thread_id = %(source)s::text AND NOT taken
    ON CONFLICT DO NOTHING
), effect AS MATERIALIZED (
    SELECT e.*, (
        lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || right(replace(gen_random_uuid()::text, '-', ''), 20)
    )::uuid AS new_id,
    CASE state WHEN 'issued' THEN 'unknown' WHEN 'claimed' THEN 'suspended' ELSE state END AS new_state
    FROM {schema}.effects e, taken WHERE scope_thread = %(source)s::text AND NOT taken
), e AS (
    INSERT INTO {schema}.effects (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, checkpoints, task_id,
        run_id, message_id, tool_call_id, outer_id,
        tool, scope, input_hash, input_type, input, state, previous_state, generation,
        attempts, keeps_key, note_count, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost,
        output_hash, source, error, origin, expired_at, lease_until
    )
    SELECT new_id, %(target)s::text, key, vendor_seed, %(target)s::text, checkpoint_ns, checkpoint_id, checkpoints,
        task_id, run_id, message_id, tool_call_id,
        -- An outer effect for all threads is not copied.
        coalesce((SELECT o.new_id FROM effect o WHERE o.effect_id = effect.outer_id), outer_id),
        tool, scope, input_hash, input_type, input, new_state, state, generation,
        attempts, keeps_key, note_count, first_attempt_at, attempted_at, ended_at, result_type, result, result_lost,
        output_hash, source, error, effect_id, expired_at,
        CASE WHEN new_state IN ('unknown', 'suspended') THEN least(lease_until, now()) END
    FROM effect
    ON CONFLICT DO NOTHING
    RETURNING effect_id, state, attempts, origin, note_count
), n AS (
    INSERT INTO {schema}.effect_notes (effect_id, kind, task_id, fence, token)
    SELECT e.effect_id, n.kind, n.task_id, n.fence, n.token
    FROM e JOIN {schema}.effect_notes n ON n.effect_id = e.origin WHERE e.note_count > 0
), d AS (
    INSERT INTO {schema}.effect_deliveries (effect_id, task_id, checkpoint_ns, checkpoints, delivered_at)
    SELECT e.effect_id, d.task_id, d.checkpoint_ns, d.checkpoints, d.delivered_at
    FROM e JOIN {schema}.effect_deliveries d ON d.effect_id = e.origin WHERE e.note_count > 0
), r AS (
    INSERT INTO {schema}.effect_results
    SELECT e.effect_id, r.type, r.data FROM e JOIN {schema}.effect_results r ON r.effect_id = e.origin
), l AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, reason)
    SELECT effect_id, NULL, state, 1, attempts, 'copied with thread ' || %(source)s::text FROM e
), t AS (
    DELETE FROM {schema}.tombstones
    WHERE thread_id = %(target)s::text AND EXISTS (
        SELECT FROM {schema}.checkpoints, taken WHERE thread_id = %(source)s::text AND NOT taken
    )
)
SELECT taken, (SELECT count(*) FROM c) FROM taken
