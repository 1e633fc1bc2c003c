-- Fragment: the relations of the rows of `effect` to a call, as `related (effect_id, relation)`; Relation names them.
-- docs/design/identity.md has the table.
--
-- Parameters: thread_id, task_id, checkpoint_ns (of the task), checkpoints (JSON: namespace -> checkpoint id), attempts
-- (JSON: namespace -> the attempt of the outer node that began this nested graph; those of first attempts are left
-- out).
--
-- The effects that have one outcome: calls under other keys took it over, one from the other.
shared AS (
    SELECT effect_id, effect_id AS member, origin FROM effect
    UNION
    SELECT s.effect_id, o.effect_id, o.origin
    FROM shared s JOIN LATERAL (
        SELECT effect_id, origin FROM {schema}.effects
        WHERE effect_id = s.origin AND thread_id = %(thread_id)s::text
        UNION ALL
        SELECT e.effect_id, e.origin
        FROM {schema}.effect_notes n JOIN {schema}.effects e
            ON e.effect_id = CASE WHEN n.kind = 'adopted' THEN n.token::uuid END
        WHERE n.effect_id = s.member AND n.kind = 'adopted'
    ) AS o ON true
),

-- Everywhere that an outcome was handed out: to the task that carried it out, and to those that were given it. What was
-- found out later (`source`) was not handed to the task that carried it out, unless that is recorded too.
place AS (
    SELECT s.effect_id, m.task_id, m.checkpoint_ns, coalesce(
        -- Effects from before migration 0005 know only the innermost graph's checkpoint.
        m.checkpoints, jsonb_build_object(regexp_replace(m.checkpoint_ns, '(^|\|)[^|]*$', ''), m.checkpoint_id)
    ) AS checkpoints, m.origin IS NOT NULL OR coalesce(m.source, 'executed') = 'executed' AS given
    FROM shared s JOIN {schema}.effects m ON m.effect_id = s.member
    UNION ALL
    SELECT s.effect_id, d.task_id, d.checkpoint_ns, d.checkpoints, true
    FROM shared s JOIN {schema}.effect_deliveries d ON d.effect_id = s.member
),

-- Adds the common graph: the deepest namespace that both have, the checkpoints of both there, the tasks of that graph
-- that lead to both, and the nested graphs that these tasks called.
met AS MATERIALIZED (
    SELECT p.effect_id, p.task_id, p.given, c.ns, c.theirs, c.mine,
        split_part(substr(p.checkpoint_ns, c.inside), '|', 1) AS their_task,
        split_part(substr(%(checkpoint_ns)s::text, c.inside), '|', 1) AS my_task, (
            SELECT key FROM jsonb_each_text(p.checkpoints) WHERE length(key) > length(c.ns) ORDER BY length(key) LIMIT 1
        ) AS their_graph, (
            SELECT key FROM jsonb_each_text(%(checkpoints)s::jsonb)
            WHERE length(key) > length(c.ns) ORDER BY length(key) LIMIT 1
        ) AS my_graph
    FROM place p LEFT JOIN LATERAL (
        SELECT t.key AS ns, t.value AS theirs, m.value AS mine, length(t.key) + (t.key <> '')::int + 1 AS inside
        FROM jsonb_each_text(p.checkpoints) AS t JOIN jsonb_each_text(%(checkpoints)s::jsonb) AS m USING (key)
        ORDER BY length(t.key) DESC LIMIT 1
    ) AS c ON true
),

-- Where to walk up, and how far: no further than the oldest checkpoint that is asked for.
walked AS MATERIALIZED (
    SELECT m.ns, m.mine, (array_agg(c.ulid ORDER BY c.ulid))[1] AS oldest
    FROM met m CROSS JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = m.ns AND checkpoint_id = m.theirs
        LIMIT 1
    ) AS c
    WHERE m.theirs <> m.mine AND m.task_id <> %(task_id)s::text
    GROUP BY m.ns, m.mine
), line AS (
    SELECT w.ns, w.oldest, c.ulid, c.parent_checkpoint_id AS parent, c.metadata_index
    FROM walked w CROSS JOIN LATERAL (
        SELECT ulid, parent_checkpoint_id, metadata_index FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = w.ns AND checkpoint_id = w.mine
        LIMIT 1
    ) AS c
    UNION ALL
    SELECT l.ns, l.oldest, c.ulid, c.parent_checkpoint_id, c.metadata_index
    FROM line l CROSS JOIN LATERAL (
        SELECT ulid, parent_checkpoint_id, metadata_index FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = l.ns AND checkpoint_id = l.parent
        LIMIT 1
    ) AS c
    WHERE l.ulid > l.oldest
),

-- Lines that end too early because their checkpoints were pruned: what lies before is not known.
cut AS MATERIALIZED (
    SELECT ns FROM line GROUP BY ns, oldest
    HAVING bool_and(ulid > oldest) AND coalesce(min((metadata_index ->> 'step')::int), 0) > -1
    AND EXISTS (SELECT FROM {schema}.prunes WHERE thread_id = %(thread_id)s::text)
),

judged AS (
    SELECT m.effect_id, CASE
        WHEN m.task_id = %(task_id)s::text THEN 'own'
        WHEN m.theirs = m.mine AND m.their_task = m.my_task
            AND coalesce((%(attempts)s::jsonb ->> m.their_graph)::int, 1)
                < coalesce((%(attempts)s::jsonb ->> m.my_graph)::int, 1)
        THEN 'undelivered'
        -- The node was retried, died, and begins with its first nested graph again, which had failed.
        WHEN m.theirs = m.mine AND m.their_task = m.my_task
            AND coalesce(substring(m.their_graph FROM '\|([0-9]+)$')::int, 0)
                > coalesce(substring(m.my_graph FROM '\|([0-9]+)$')::int, 0)
            AND EXISTS (
                SELECT FROM {schema}.writes
                WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = m.my_graph AND channel = '__error__'
            )
        THEN 'undelivered'
        -- A nested graph that failed gave its node nothing, even if the node caught the error and went on.
        WHEN (m.theirs = m.mine AND m.their_task = m.my_task OR step.metadata_index ->> 'source' = 'loop')
            AND m.their_graph IS NOT NULL AND EXISTS (
                SELECT FROM (
                    SELECT checkpoint_id FROM {schema}.checkpoints
                    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = m.their_graph AND ulid IS NOT NULL
                    ORDER BY ulid DESC LIMIT 1
                ) AS last JOIN {schema}.writes w ON w.thread_id = %(thread_id)s::text
                    AND w.checkpoint_ns = m.their_graph AND w.checkpoint_id = last.checkpoint_id
                WHERE w.channel = '__error__'
            )
        THEN 'undelivered'
        WHEN m.theirs = m.mine THEN 'sibling'
        WHEN step.parent IS NOT NULL THEN CASE step.metadata_index ->> 'source'
            WHEN 'loop' THEN CASE WHEN m.given THEN 'delivered' ELSE 'undelivered' END
            WHEN 'input' THEN 'undelivered'
            WHEN 'update' THEN 'fork'
            WHEN 'fork' THEN 'fork'
            ELSE 'gone' -- made by a version that did not index the source
        END
        WHEN stored.ulid IS NULL OR EXISTS (SELECT FROM cut WHERE cut.ns = m.ns) THEN 'gone'
        ELSE 'fork'
    END AS relation
    FROM met m
    LEFT JOIN line AS step ON step.ns = m.ns AND step.parent = m.theirs
    LEFT JOIN LATERAL (
        SELECT ulid FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = m.ns AND checkpoint_id = m.theirs
        LIMIT 1
    ) AS stored ON true
),

related AS MATERIALIZED (
    SELECT effect_id, (array_agg(relation ORDER BY array_position(
        '{own,delivered,sibling,undelivered,fork,gone}'::text[], relation
    )))[1] AS relation
    FROM judged GROUP BY effect_id
)
