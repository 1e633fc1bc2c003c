-- Claim an effect, or return why it cannot be claimed.
--
-- Parameters: effect_id (the new effect's id, and the id of this claim), scope_thread, key, vendor_seed, thread_id,
-- checkpoint_ns, checkpoint_id, checkpoints, task_id, run_id, message_id, tool_call_id, outer_id, tool, scope,
-- input_hash, input_type, input, state ('claimed' or 'issued'), actor, reason, lease, check_duplicates,
-- check_candidates, resumes (whether a body that waited for a human after it was issued may run again).
--
-- Columns: a ClaimKind, then the columns of an EffectRow. The kinds:
--   claimed    the effect, now claimed
--   existing   the effect, which may not be claimed, or was changed after this statement's snapshot was taken
--   duplicate  instead of a first claim, or of one after a failure: an effect of the same thread, tool, arguments and
--              place under another key whose end is unknown, or may be: the live lease of another process may belong to
--              a dead one. Or whose end this task asked a human about, who answered. Effects of the same message or, in
--              code, of the same checkpoint are not duplicates: what is requested twice at once is wanted twice.
--   candidate  instead of a first claim, or of one after a failure: one of the effects whose outcome this call may be
--              asking for again (candidate.sql). Which of them are, depends on their relation to the call, which this
--              does not look at.
-- No row: another process created the effect after this statement's snapshot was taken.
--
-- `existing` is read before anything is written, so a replay writes nothing. Later changes are met by ON CONFLICT.
WITH existing AS MATERIALIZED (
    SELECT {effect_columns}
    FROM {schema}.effects e
    WHERE e.scope_thread = %(scope_thread)s::text AND e.key = %(key)s::bytea
), settled AS MATERIALIZED (
    -- A failed effect that may begin again is like none: what became of the call may be known elsewhere.
    SELECT state FROM existing
    WHERE state <> 'failed' OR input_hash <> %(input_hash)s::bytea OR note_count > 0 AND EXISTS (
        SELECT FROM {schema}.effect_notes n WHERE n.effect_id = existing.effect_id
        AND n.kind = 'refused' AND n.task_id = %(task_id)s::text
    )
), duplicate AS MATERIALIZED (
    SELECT {effect_columns}
    FROM {schema}.effects e
    WHERE e.thread_id = %(thread_id)s::text AND e.tool = %(tool)s::text AND e.input_hash = %(input_hash)s::bytea
    AND %(check_duplicates)s::bool AND NOT EXISTS (SELECT FROM settled) AND {same_place} AND (
        e.state = 'unknown'
        OR e.state = 'issued' AND (e.lease_until < now() OR e.owner IS DISTINCT FROM %(actor)s::text)
        OR e.state IN ('completed', 'failed') AND e.note_count > 0 AND EXISTS (
            SELECT FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id AND n.task_id = %(task_id)s::text
            -- A question with the token 'fork' is another one, and its answer another note.
            AND CASE WHEN e.state = 'completed' THEN n.kind IN ('question', 'waiting') AND n.token <> 'fork'
                ELSE n.kind = 'refused' END
        )
    )
    AND (e.note_count = 0 OR NOT EXISTS (
        SELECT FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id AND (
            n.kind IN ('adopted', 'acknowledged')
            OR n.kind = 'fork' AND n.token = 'new' AND n.task_id = %(task_id)s::text
        )
    ))
    AND CASE WHEN %(message_id)s::text IS NOT NULL THEN e.message_id IS DISTINCT FROM %(message_id)s::text
        ELSE e.message_id IS NOT NULL OR e.checkpoint_id IS DISTINCT FROM %(checkpoint_id)s::text END
), candidate AS MATERIALIZED (
    SELECT {effect_columns}
    FROM {schema}.effects e
    WHERE {candidate} AND %(check_candidates)s::bool
    AND NOT EXISTS (SELECT FROM settled) AND NOT EXISTS (SELECT FROM duplicate)
    LIMIT 1
), claimed AS (
    INSERT INTO {schema}.effects AS e (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, checkpoints, task_id,
        run_id, message_id, tool_call_id, outer_id, tool, scope, input_hash, input_type, input, state,
        owner, lease_until
    )
    SELECT %(effect_id)s::uuid, %(scope_thread)s::text, %(key)s::bytea, %(vendor_seed)s::bytea, %(thread_id)s::text,
        %(checkpoint_ns)s::text, %(checkpoint_id)s::text, %(checkpoints)s::jsonb, %(task_id)s::text, %(run_id)s::text,
        %(message_id)s::text, %(tool_call_id)s::text, %(outer_id)s::uuid, %(tool)s::text, %(scope)s::text,
        %(input_hash)s::bytea, %(input_type)s::text, %(input)s::bytea, %(state)s::text,
        %(actor)s::text, now() + %(lease)s::interval
    WHERE NOT EXISTS (
        SELECT FROM existing WHERE input_hash <> %(input_hash)s::bytea
        OR state IN ('completed', 'issued', 'unknown', 'abandoned') OR state = 'claimed' AND lease_until >= now()
        OR state = 'suspended' AND previous_state IS DISTINCT FROM 'claimed' AND NOT %(resumes)s::bool
        OR state = 'failed' AND note_count > 0 AND EXISTS (
            SELECT FROM {schema}.effect_notes n WHERE n.effect_id = existing.effect_id
            AND n.kind = 'refused' AND n.task_id = %(task_id)s::text
        )
    ) AND NOT EXISTS (SELECT FROM duplicate) AND NOT EXISTS (SELECT FROM candidate)
    ON CONFLICT (scope_thread, key) DO UPDATE SET
        previous_state = CASE
            -- A claimer that died says nothing about the state before its claim.
            WHEN e.state = 'claimed' AND e.previous_state = 'suspended' THEN 'suspended' ELSE e.state
        END,
        state = excluded.state, fence = e.fence + 1, attempts = e.attempts + 1,
        -- The vendor may have saved an error under the key of an attempt that definitely failed, and only of that.
        generation = e.generation + (e.state = 'failed' AND NOT e.keeps_key)::int,
        -- An attempt in a copied thread is another payment than its source's.
        vendor_seed = CASE WHEN e.state = 'failed' THEN excluded.vendor_seed ELSE e.vendor_seed END,
        checkpoint_ns = excluded.checkpoint_ns, checkpoint_id = excluded.checkpoint_id,
        checkpoints = excluded.checkpoints, task_id = excluded.task_id,
        run_id = excluded.run_id, owner = excluded.owner, lease_until = excluded.lease_until,
        attempted_at = now(), ended_at = NULL, error = NULL, source = NULL,
        -- This attempt has its own arguments, whether or not those of the last one expired.
        input_type = excluded.input_type, input = excluded.input, expired_at = NULL,
        claim_id = excluded.effect_id, keeps_key = false
    WHERE e.input_hash = excluded.input_hash
    AND CASE e.state
        WHEN 'failed' THEN true
        -- A body that waited before it was issued sent nothing.
        WHEN 'suspended' THEN e.previous_state IS NOT DISTINCT FROM 'claimed' OR %(resumes)s::bool
        WHEN 'claimed' THEN e.lease_until < now()
        ELSE false
    END
    -- The row may be newer than the snapshot that the notes are read from. If its count is the same, they are current.
    AND (e.state <> 'failed' OR e.note_count = (SELECT note_count FROM existing) AND NOT (
        e.note_count > 0 AND EXISTS (
            SELECT FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id
            AND n.kind = 'refused' AND n.task_id = excluded.task_id
        )
    ))
    RETURNING {effect_columns}
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    -- The history has every claim, also those that previous_state passes over.
    SELECT effect_id,
        CASE WHEN EXISTS (SELECT FROM existing WHERE state = 'claimed') THEN 'claimed' ELSE previous_state END,
        state, fence, attempts, %(actor)s::text, %(reason)s::text
    FROM claimed WHERE {flush_at_commit}
)
SELECT 'claimed', * FROM claimed
UNION ALL
SELECT 'existing', * FROM existing
WHERE NOT EXISTS (SELECT FROM claimed) AND NOT EXISTS (SELECT FROM duplicate) AND NOT EXISTS (SELECT FROM candidate)
UNION ALL
SELECT 'duplicate', * FROM duplicate
UNION ALL
SELECT 'candidate', * FROM candidate
