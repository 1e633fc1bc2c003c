-- Move an effect to another state, if it is in one of the given states and under the given fence.
--
-- Python has checked that the transition exists (TRANSITIONS).
--
-- Parameters: effect_id, to, from (text[]), fence (NULL: any), expired (only if the lease has ended), new_owner
-- (1: the mover takes the effect over, which raises the fence; else 0), lease, task_id, run_id, checkpoint_ns,
-- checkpoint_id, checkpoints (these five NULL: unchanged), source, error, result_type, result, large (the result, if it
-- goes to effect_results), result_lost, output_hash, claim_id (NULL: unchanged), keeps_key, notes (JSON array of
-- objects with kind, task_id, fence, token; NULL: none), added (their number), actor, reason.
--
-- Columns: those of an EffectRow, after the move, but with the notes from before it. No row: the effect was not moved.
WITH e AS (
    UPDATE {schema}.effects e SET
        previous_state = state, state = %(to)s::text,
        fence = fence + %(new_owner)s::int, attempts = attempts + %(new_owner)s::int * (%(to)s::text = 'issued')::int,
        owner = CASE WHEN %(new_owner)s::int = 1 THEN %(actor)s::text ELSE owner END,
        lease_until = CASE
            WHEN %(to)s::text IN ('claimed', 'issued') THEN now() + %(lease)s::interval
            -- The latest time at which the attempt may have ended, which may be long after it began.
            WHEN %(to)s::text IN ('unknown', 'suspended') THEN CASE
                WHEN %(expired)s::bool OR state = 'suspended' THEN lease_until ELSE now()
            END
        END,
        attempted_at = CASE WHEN %(to)s::text = 'issued' THEN now() ELSE attempted_at END,
        ended_at = CASE WHEN %(to)s::text IN ('completed', 'failed', 'abandoned') THEN now() END,
        task_id = coalesce(%(task_id)s::text, task_id), run_id = coalesce(%(run_id)s::text, run_id),
        checkpoint_ns = coalesce(%(checkpoint_ns)s::text, checkpoint_ns),
        checkpoint_id = coalesce(%(checkpoint_id)s::text, checkpoint_id),
        checkpoints = coalesce(%(checkpoints)s::jsonb, checkpoints),
        source = coalesce(%(source)s::text, source), result_lost = %(result_lost)s::bool,
        -- An effect that ends after its thread was deleted stores no payloads.
        error = CASE WHEN expired_at IS NULL THEN %(error)s::text END,
        result_type = CASE WHEN expired_at IS NULL THEN %(result_type)s::text END,
        result = CASE WHEN expired_at IS NULL THEN %(result)s::bytea END,
        output_hash = %(output_hash)s::bytea, claim_id = coalesce(%(claim_id)s::uuid, claim_id),
        -- Says something about the attempt under the fence, which a new owner raises.
        keeps_key = %(keeps_key)s::bool OR keeps_key AND %(new_owner)s::int = 0,
        note_count = note_count + %(added)s::int,
        expired_at = CASE WHEN %(new_owner)s::int = 0 OR %(to)s::text <> 'issued' THEN expired_at END
    WHERE effect_id = %(effect_id)s::uuid AND state = ANY (%(from)s::text[])
    AND (%(fence)s::bigint IS NULL OR fence = %(fence)s::bigint)
    AND (NOT %(expired)s::bool OR lease_until < now())
    RETURNING *
), large AS (
    INSERT INTO {schema}.effect_results (effect_id, type, data)
    SELECT effect_id, %(result_type)s::text, %(large)s::bytea FROM e
    WHERE %(large)s::bytea IS NOT NULL AND expired_at IS NULL
    ON CONFLICT (effect_id) DO UPDATE SET type = excluded.type, data = excluded.data
), note AS (
    INSERT INTO {schema}.effect_notes (effect_id, kind, task_id, fence, token)
    SELECT e.effect_id, n.kind, n.task_id, n.fence, n.token
    FROM e, json_to_recordset(%(notes)s::json) AS n (kind text, task_id text, fence bigint, token text)
    ON CONFLICT DO NOTHING
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, previous_state, state, fence, attempts, %(actor)s::text,
        CASE WHEN expired_at IS NULL OR %(source)s::text = 'human' THEN %(reason)s::text END
    FROM e WHERE {flush_at_commit}
)
SELECT {effect_columns} FROM e
