-- langgraph_durable 0002: the effect log.
--
--   effects         one row per effect: what a tool did, or may have done, to the outside world. Its key is the
--                   sha256 of the call's identity within its thread, so that a copied thread finds its own; who
--                   holds the fence may report how it ended.
--   effect_results  results of over 1 MiB, apart from their effects.
--   effect_events   who moved which effect from what to what, when and why; only ever added to.
--
-- A prune spares all of them: an effect has happened, whatever becomes of the checkpoint that asked for it.

CREATE TABLE {schema}.effects (
    effect_id        uuid PRIMARY KEY,                 -- a ULID
    scope_thread     text COLLATE "C" NOT NULL,        -- the thread that the key is within; empty for all threads
    key              bytea NOT NULL,
    vendor_seed      bytea NOT NULL,                   -- what the vendor's idempotency key is made from
    thread_id        text COLLATE "C",                 -- NULL outside of any thread
    checkpoint_ns    text COLLATE "C",                 -- where it was attempted last
    checkpoint_id    text COLLATE "C",                 -- the checkpoint that named it then
    task_id          text COLLATE "C",
    run_id           text COLLATE "C",
    message_id       text COLLATE "C",                 -- of the model's message that asked for it
    tool_call_id     text COLLATE "C",
    tool             text COLLATE "C" NOT NULL,
    scope            text NOT NULL,
    input_hash       bytea NOT NULL,
    input_type       text,                             -- the arguments, for whom is asked to decide
    input            bytea,
    state            text NOT NULL CHECK (state IN (
        'claimed', 'issued', 'suspended', 'completed', 'failed', 'unknown', 'abandoned'
    )),
    previous_state   text,
    fence            bigint NOT NULL DEFAULT 1,        -- rises with each change of owner
    generation       integer NOT NULL DEFAULT 0,       -- rises with each new key for the vendor
    attempts         integer NOT NULL DEFAULT 1,
    owner            text,
    lease_until      timestamptz,
    asked            text[] COLLATE "C" NOT NULL DEFAULT '{{}}', -- questions to humans: task/fence/number
    first_attempt_at timestamptz NOT NULL DEFAULT now(),
    attempted_at     timestamptz NOT NULL DEFAULT now(),
    ended_at         timestamptz,
    result_type      text,
    result           bytea,                            -- NULL with a type: in effect_results
    result_lost      boolean NOT NULL DEFAULT false,   -- it happened, but its result could not be stored
    output_hash      bytea,
    source           text,                             -- of the outcome: executed, verified, human
    error            text,
    origin           uuid,                             -- of a copy: the effect it was copied from
    expired_at       timestamptz,                      -- when its payloads were dropped
    UNIQUE (scope_thread, key)
);

CREATE INDEX effects_thread_idx ON {schema}.effects (thread_id, tool, input_hash) WHERE thread_id IS NOT NULL;
CREATE INDEX effects_unresolved_idx ON {schema}.effects (effect_id)
    WHERE state NOT IN ('completed', 'failed', 'abandoned');

CREATE TABLE {schema}.effect_results (
    effect_id uuid PRIMARY KEY,
    type      text NOT NULL,
    data      bytea NOT NULL
);

CREATE TABLE {schema}.effect_events (
    effect_id  uuid NOT NULL,
    number     bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    from_state text,
    to_state   text NOT NULL,
    fence      bigint NOT NULL,
    attempt    integer NOT NULL,
    actor      text,
    reason     text,
    PRIMARY KEY (effect_id, number)
);
