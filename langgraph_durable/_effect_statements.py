"""Every SQL statement of the effect log, each a constant; only the schema's name is filled in.

Time is the server's: workers' clocks may be off. Each statement that changes an effect tells effect_events so, in the
same statement, and each that reads one gives the columns of `_COLUMNS`.
"""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._statements import Statement

_COLUMNS: LiteralString = """
    e.effect_id, e.tool, e.state, e.previous_state, e.scope, e.thread_id, e.checkpoint_ns, e.checkpoint_id, e.task_id,
    e.run_id, e.message_id, e.tool_call_id, e.attempts, e.generation, e.fence, e.owner, e.first_attempt_at,
    e.attempted_at, e.ended_at, e.source, e.error, e.result_lost, e.key, e.vendor_seed, e.input_hash, e.input_type,
    e.input, e.result_type, e.result, e.asked, e.lease_until, e.expired_at, now() AS now
"""

# A condition that always holds, and has the transaction flushed to disk at its commit, where the role or the database
# has that off: an effect whose record is lost in a crash would happen again. Other settings are the operator's choice.
# Each statement that writes has it where it is evaluated for a row that is written, so that it costs no round trip.
_DURABLY: LiteralString = """CASE
    WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) = 'on'
    ELSE true
END"""

# The kinds of rows that a claim gives: the effect, claimed; the effect, that may not be claimed; or, instead of a first
# claim, effects of the same thread, tool and arguments under another key, whose end nobody knows, or knows yet: another
# process's live lease may be a dead one's. (Not those of the same message or, of code, the same checkpoint: whoever
# asks for a thing twice at once wants it twice.) Or whose end this task asked a human for, and was told. No row at
# all: it was claimed just now by another, which this snapshot does not show.
MINE, SEEN, TWIN = range(3)

# What may not be claimed is seen before anything is written, so that a replay writes nothing; what comes to be
# meanwhile, ON CONFLICT meets.
CLAIM = Statement(
    """
WITH seen AS MATERIALIZED (
    SELECT """
    + _COLUMNS
    + """FROM {schema}.effects e
    WHERE e.scope_thread = %(scope_thread)s::text AND e.key = %(key)s::bytea
), twin AS MATERIALIZED (
    SELECT """
    + _COLUMNS
    + """FROM {schema}.effects e
    WHERE e.thread_id = %(thread_id)s::text AND e.tool = %(tool)s::text AND e.input_hash = %(input_hash)s::bytea
    AND (
        e.state = 'unknown'
        OR e.state = 'issued' AND (e.lease_until < now() OR e.owner IS DISTINCT FROM %(actor)s::text)
        OR e.state = 'completed'
        AND EXISTS (SELECT FROM unnest(e.asked) AS asked WHERE starts_with(asked, %(task_id)s::text || '/'))
        OR e.state = 'failed' AND %(task_id)s::text || '/refused' = ANY (e.asked)
    )
    AND CASE WHEN %(message_id)s::text IS NOT NULL THEN e.message_id IS DISTINCT FROM %(message_id)s::text
        ELSE e.message_id IS NOT NULL OR e.checkpoint_id IS DISTINCT FROM %(checkpoint_id)s::text END
    AND %(heed_twins)s::bool AND NOT EXISTS (SELECT FROM seen)
), claimed AS (
    INSERT INTO {schema}.effects AS e (
        effect_id, scope_thread, key, vendor_seed, thread_id, checkpoint_ns, checkpoint_id, task_id, run_id, message_id,
        tool_call_id, tool, scope, input_hash, input_type, input, state, owner, lease_until
    )
    SELECT %(effect_id)s::uuid, %(scope_thread)s::text, %(key)s::bytea, %(vendor_seed)s::bytea, %(thread_id)s::text,
        %(checkpoint_ns)s::text, %(checkpoint_id)s::text, %(task_id)s::text, %(run_id)s::text, %(message_id)s::text,
        %(tool_call_id)s::text, %(tool)s::text, %(scope)s::text, %(input_hash)s::bytea, %(input_type)s::text,
        %(input)s::bytea, %(state)s::text, %(actor)s::text, now() + %(lease)s::interval
    WHERE NOT EXISTS (
        SELECT FROM seen WHERE input_hash <> %(input_hash)s::bytea
        OR state IN ('completed', 'issued', 'unknown', 'abandoned') OR state = 'claimed' AND lease_until >= now()
        OR state = 'suspended' AND previous_state IS DISTINCT FROM 'claimed' AND NOT %(resumes)s::bool
        OR state = 'failed' AND %(task_id)s::text || '/refused' = ANY (asked)
    ) AND NOT EXISTS (SELECT FROM twin)
    ON CONFLICT (scope_thread, key) DO UPDATE SET
        previous_state = CASE
            -- Whoever claimed it and died has told nothing of what was before.
            WHEN e.state = 'claimed' AND e.previous_state = 'suspended' THEN 'suspended' ELSE e.state
        END,
        state = excluded.state, fence = e.fence + 1, attempts = e.attempts + 1,
        -- The vendor may have an error saved under the key of what definitely failed, and only of that.
        generation = e.generation + (e.state = 'failed' AND 'kept ' || e.fence::text <> ALL (e.asked))::int,
        -- A copied thread's own attempt is another payment than its source's.
        vendor_seed = CASE WHEN e.state = 'failed' THEN excluded.vendor_seed ELSE e.vendor_seed END,
        checkpoint_ns = excluded.checkpoint_ns, checkpoint_id = excluded.checkpoint_id, task_id = excluded.task_id,
        run_id = excluded.run_id, owner = excluded.owner, lease_until = excluded.lease_until,
        attempted_at = now(), ended_at = NULL, error = NULL, source = NULL,
        -- What was dropped of the attempt before is nothing that this one keeps.
        input_type = excluded.input_type, input = excluded.input, expired_at = NULL,
        asked = array(
            SELECT memory FROM unnest(e.asked) AS memory WHERE NOT starts_with(memory, 'claim ')
            AND NOT starts_with(memory, 'kept ') -- they tell of a fence that is moved here
        ) || ('claim ' || excluded.effect_id::text || ' ' || (e.fence + 1)::text)
    WHERE e.input_hash = excluded.input_hash
    AND CASE e.state
        WHEN 'failed' THEN true
        -- What waited before it was issued sent nothing.
        WHEN 'suspended' THEN e.previous_state IS NOT DISTINCT FROM 'claimed' OR %(resumes)s::bool
        WHEN 'claimed' THEN e.lease_until < now()
        ELSE false
    END
    AND (e.state <> 'failed' OR coalesce(excluded.task_id || '/refused' <> ALL (e.asked), true))
    RETURNING """
    + _COLUMNS
    + """), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    -- The history tells of each claim, also of those that previous_state passes over.
    SELECT effect_id,
        CASE WHEN EXISTS (SELECT FROM seen WHERE state = 'claimed') THEN 'claimed' ELSE previous_state END,
        state, fence, attempts, %(actor)s::text, %(reason)s::text
    FROM claimed WHERE """
    + _DURABLY
    + """
)
SELECT 0, * FROM claimed
UNION ALL
SELECT 1, * FROM seen WHERE NOT EXISTS (SELECT FROM claimed)
UNION ALL
SELECT 2, * FROM twin
"""
)

# Moves an effect from one of some states, if nobody moved its fence. What it may be moved to, Python has checked.
MOVE = Statement(
    """
WITH e AS (
    UPDATE {schema}.effects e SET
        previous_state = state, state = %(to)s::text,
        fence = fence + %(new_owner)s::int, attempts = attempts + %(new_owner)s::int * (%(to)s::text = 'issued')::int,
        owner = CASE WHEN %(new_owner)s::int = 1 THEN %(actor)s::text ELSE owner END,
        lease_until = CASE
            WHEN %(to)s::text IN ('claimed', 'issued') THEN now() + %(lease)s::interval
            -- When the attempt ended at the latest, which may be long after it began.
            WHEN %(to)s::text IN ('unknown', 'suspended') THEN CASE
                WHEN %(expired)s::bool OR state = 'suspended' THEN lease_until ELSE now()
            END
        END,
        attempted_at = CASE WHEN %(to)s::text = 'issued' THEN now() ELSE attempted_at END,
        ended_at = CASE WHEN %(to)s::text IN ('completed', 'failed', 'abandoned') THEN now() END,
        task_id = coalesce(%(task_id)s::text, task_id), run_id = coalesce(%(run_id)s::text, run_id),
        source = coalesce(%(source)s::text, source), result_lost = %(result_lost)s::bool,
        -- What ends after its thread was deleted brings nothing of that back.
        error = CASE WHEN expired_at IS NULL THEN %(error)s::text END,
        result_type = CASE WHEN expired_at IS NULL THEN %(result_type)s::text END,
        result = CASE WHEN expired_at IS NULL THEN %(result)s::bytea END,
        output_hash = %(output_hash)s::bytea, asked = asked || %(memory)s::text[],
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
), event AS (
    INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
    SELECT effect_id, previous_state, state, fence, attempts, %(actor)s::text,
        CASE WHEN expired_at IS NULL OR %(source)s::text = 'human' THEN %(reason)s::text END
    FROM e WHERE """
    + _DURABLY
    + """
)
SELECT """
    + _COLUMNS
    + "FROM e"
)

# What an owner reports whose fence was moved: refused, but not forgotten.
RECORD_REFUSAL = Statement(
    """
INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
SELECT effect_id, state, state, %(fence)s::bigint, attempts, %(actor)s::text, %(reason)s::text
FROM {schema}.effects WHERE effect_id = %(effect_id)s::uuid AND """
    + _DURABLY
)

RENEW = Statement(
    """
UPDATE {schema}.effects e SET lease_until = now() + k.lease
FROM unnest(%s::uuid[], %s::bigint[], %s::interval[]) AS k (effect_id, fence, lease)
WHERE e.effect_id = k.effect_id AND e.fence = k.fence AND e.state IN ('claimed', 'issued') AND """
    + _DURABLY
    + " RETURNING e.effect_id"
)

REMEMBER = Statement(
    """
UPDATE {schema}.effects SET asked = asked || array(
    SELECT DISTINCT memory FROM unnest(%(memory)s::text[]) AS memory WHERE memory <> ALL (asked)
) WHERE effect_id = %(effect_id)s::uuid AND """
    + _DURABLY
)

FIND_COMPLETED = Statement(
    "SELECT"
    + _COLUMNS
    + """FROM {schema}.effects e
WHERE e.scope_thread = %(scope_thread)s::text AND e.key = %(key)s::bytea AND e.state = 'completed'
"""
)

GET_EFFECT = Statement(
    "SELECT" + _COLUMNS + "FROM {schema}.effects e WHERE e.effect_id = %(effect_id)s::uuid"
)

GET_RESULT = Statement("SELECT data FROM {schema}.effect_results WHERE effect_id = %s::uuid")

LIST_EVENTS = Statement("""
SELECT number, at, from_state, to_state, fence, attempt, actor, reason FROM {schema}.effect_events
WHERE effect_id = %s::uuid ORDER BY number
""")

LIST_EFFECTS = Statement(
    "SELECT"
    + _COLUMNS
    + """FROM {schema}.effects e
WHERE (
    %(states)s::text[] IS NULL OR e.state = ANY (%(states)s::text[]) OR e.state <> ALL (%(known)s::text[])
)
AND (%(tool)s::text IS NULL OR e.tool = %(tool)s::text)
AND (%(thread_id)s::text IS NULL OR e.thread_id = %(thread_id)s::text)
AND (%(run_id)s::text IS NULL OR e.run_id = %(run_id)s::text)
AND (%(after)s::uuid IS NULL OR e.effect_id > %(after)s::uuid)
ORDER BY e.effect_id LIMIT %(limit)s::bigint
"""
)

# Those that the tasks of a checkpoint asked for; of a root graph's, also those that the subgraphs asked for which its
# tasks called, as long as their checkpoints are there. An effect has its task's namespace: the graphs around that are
# its prefixes.
LIST_CHECKPOINT_EFFECTS = Statement(
    """
WITH target AS MATERIALIZED (
    SELECT coalesce(%(checkpoint_id)s::text, (
        SELECT checkpoint_id FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    )) AS checkpoint_id
)
SELECT"""
    + _COLUMNS
    + """FROM target t JOIN {schema}.effects e ON e.thread_id = %(thread_id)s::text
WHERE e.checkpoint_id = t.checkpoint_id
AND (%(checkpoint_ns)s::text = '' OR starts_with(e.checkpoint_ns, %(checkpoint_ns)s::text || '|'))
OR %(checkpoint_ns)s::text = '' AND e.checkpoint_id <> t.checkpoint_id AND EXISTS (
    SELECT FROM string_to_array(e.checkpoint_ns, '|') AS parts
    CROSS JOIN LATERAL generate_series(1, cardinality(parts)) AS n CROSS JOIN LATERAL (
        SELECT root_checkpoint_id FROM {schema}.checkpoints c
        WHERE c.thread_id = e.thread_id AND c.checkpoint_ns = array_to_string(parts[:n], '|')
        AND c.checkpoint_id = e.checkpoint_id
        LIMIT 1
    ) c WHERE c.root_checkpoint_id = t.checkpoint_id
)
ORDER BY e.effect_id
"""
)

# Of threads that are deleted, and of effects that ended long ago: the key and the hashes stay, so that nothing happens
# twice for it. What nobody has decided on yet keeps its arguments.
EXPIRE = Statement("""
WITH large AS (
    DELETE FROM {schema}.effect_results r USING {schema}.effects e
    WHERE r.effect_id = e.effect_id AND e.state IN ('completed', 'failed', 'abandoned')
    AND e.ended_at < now() - %(older_than)s::interval
), expired AS (
    UPDATE {schema}.effects SET input_type = NULL, input = NULL, result = NULL, error = NULL, expired_at = now()
    WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
    AND expired_at IS NULL
    RETURNING effect_id
), events AS (
    UPDATE {schema}.effect_events SET reason = NULL
    WHERE reason IS NOT NULL AND effect_id IN (SELECT effect_id FROM expired)
)
SELECT effect_id FROM expired
""")

COUNT_EXPIRABLE = Statement("""
SELECT count(*) FROM {schema}.effects
WHERE state IN ('completed', 'failed', 'abandoned') AND ended_at < now() - %(older_than)s::interval
AND expired_at IS NULL
""")

# Effects that nobody will come back to of itself: their thread is gone, and they need a decision.
COUNT_ORPHANS = Statement("""
SELECT count(*) FROM {schema}.effects e
WHERE e.thread_id IS NOT NULL AND (e.state = 'unknown' OR e.state = 'issued' AND e.lease_until < now())
AND NOT EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = e.thread_id)
""")

CHECKPOINT_EXISTS = Statement("""
SELECT EXISTS (
    SELECT FROM {schema}.checkpoints
    WHERE thread_id = %s::text AND checkpoint_ns = %s::text AND checkpoint_id = %s::text
)
""")
