-- langgraph_durable 0004: what effects remember of questions and decisions, as rows.
--
--   effect_notes  one row per fact: who asked a human about an effect, which answers were used, who waits for a
--                 decision. They belong to an effect and are copied with it. There is no foreign key, as in
--                 effect_results and effect_events: effects are never deleted.
--
-- Before, effects.asked had them as text, together with two facts about the attempt under the current fence. These two
-- are columns: ON CONFLICT DO UPDATE decides by them, and it sees the newest row, but not the newest rows of another
-- table. `note_count` says whether there are notes to look for, and whether those of a snapshot are the newest.

CREATE TABLE {schema}.effect_notes (
    effect_id uuid NOT NULL,
    kind      text NOT NULL CHECK (kind IN (
        'question', -- task_id asked a human about the effect, as it was under fence
        'answer',   -- an answer was used: token is its hash
        'waiting',  -- task_id waits for a decision on this effect, a possible duplicate of the task's
        'refused',  -- a human answered task_id that the effect failed and must not be retried there
        'fork',     -- what task_id does about a fork: token is 'replay' or 'new'
        'decision', -- a decision moved the effect: token is the id by which a retry recognizes its move
        'damaged'   -- an entry of effects.asked that was none of these: token
    )),
    task_id   text COLLATE "C" NOT NULL DEFAULT '',
    fence     bigint NOT NULL DEFAULT 0,
    token     text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (effect_id, kind, task_id, fence, token)
);

ALTER TABLE {schema}.effects
    ADD COLUMN claim_id   uuid,                           -- the claim that the fence belongs to; NULL: the first one
    ADD COLUMN keeps_key  boolean NOT NULL DEFAULT false, -- a failure under this fence leaves the vendor's key
    ADD COLUMN note_count integer NOT NULL DEFAULT 0;     -- rises with each note that is added

-- The formats of asked: `seen/HASH`, `decision ID`, `TASK/FENCE`, `TASK/waiting`, `TASK/refused`, `TASK/replay` and
-- `TASK/new` become notes; `claim ID FENCE` and `kept FENCE` matter only for the current fence, and become columns.
INSERT INTO {schema}.effect_notes (effect_id, kind, task_id, fence, token)
SELECT e.effect_id, n.kind, coalesce(n.task_id, ''), coalesce(n.fence, 0), coalesce(n.token, '')
FROM {schema}.effects e
CROSS JOIN LATERAL unnest(e.asked) AS entry
CROSS JOIN LATERAL (
    SELECT substring(entry FROM '^(.*)/[^/]*$') AS task, substring(entry FROM '^.*/([^/]*)$') AS rest
) parts
CROSS JOIN LATERAL (
    SELECT 'answer' AS kind, NULL AS task_id, NULL::bigint AS fence, rest AS token WHERE task = 'seen'
    UNION ALL
    SELECT 'question', task, CASE WHEN rest ~ '^[0-9]{{1,18}}$' THEN rest::bigint END, NULL
    WHERE task <> 'seen' AND rest ~ '^[0-9]{{1,18}}$'
    UNION ALL
    SELECT rest, task, NULL, NULL WHERE task <> 'seen' AND rest IN ('waiting', 'refused')
    UNION ALL
    SELECT 'fork', task, NULL, rest WHERE task <> 'seen' AND rest IN ('replay', 'new')
    UNION ALL
    SELECT 'decision', NULL, NULL, substr(entry, 10) WHERE starts_with(entry, 'decision ')
    UNION ALL
    SELECT 'damaged', NULL, NULL, entry
    WHERE entry IS NULL OR NOT (
        starts_with(entry, 'decision ') OR entry ~ '^kept [0-9]+$'
        OR entry ~ '^claim [0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}} [0-9]+$'
        OR coalesce(task = 'seen' OR rest ~ '^([0-9]{{1,18}}|waiting|refused|replay|new)$', false)
    )
) n
ON CONFLICT DO NOTHING;

UPDATE {schema}.effects e SET
    claim_id = (
        SELECT split_part(entry, ' ', 2)::uuid FROM unnest(e.asked) AS entry
        WHERE entry ~ '^claim [0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}} [0-9]+$'
        AND split_part(entry, ' ', 3) = e.fence::text
        LIMIT 1
    ),
    keeps_key = coalesce('kept ' || e.fence::text = ANY (e.asked), false),
    note_count = (SELECT count(*) FROM {schema}.effect_notes n WHERE n.effect_id = e.effect_id)
WHERE e.asked <> '{{}}';

ALTER TABLE {schema}.effects DROP COLUMN asked;
