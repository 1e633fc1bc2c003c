-- langgraph_durable 0005: which call an effect belongs to (docs/design/identity.md).
--
--   effects.checkpoints  the checkpoints that led to the effect, as JSON: namespace -> checkpoint id, of each graph
--                        from the outermost to its own. NULL in rows from before this migration: only the innermost
--                        is known.
--   effects.outer_id     the effect whose body called this one; NULL if none did.
--   effect_deliveries    one row per task that was given the outcome of an effect and did not carry it out: replays
--                        on forks, and healed tool calls. Effects are never deleted, so there is no foreign key.
--
-- A note of kind 'adopted' says that another call took the effect's outcome, and 'acknowledged', that a human dealt
-- with it. Either way it is not a candidate for a later call.

ALTER TABLE {schema}.effects
    ADD COLUMN checkpoints jsonb,
    ADD COLUMN outer_id    uuid;

CREATE TABLE {schema}.effect_deliveries (
    effect_id     uuid NOT NULL,
    task_id       text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL, -- the task's namespace
    checkpoints   jsonb NOT NULL,            -- as in effects
    delivered_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (effect_id, task_id)
);

ALTER TABLE {schema}.effect_notes DROP CONSTRAINT effect_notes_kind_check;
ALTER TABLE {schema}.effect_notes ADD CONSTRAINT effect_notes_kind_check CHECK (kind IN (
    'question', 'answer', 'waiting', 'refused', 'fork', 'decision', 'damaged', 'adopted', 'acknowledged'
));
