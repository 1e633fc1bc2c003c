-- langgraph_durable 0001: the tables of the checkpoint saver.
--
--   checkpoints     one row per checkpoint: its place in the order (ulid), its parent, what it holds
--                   without the larger channel values, and which of those it names.
--   channel_values  one row per version of a channel, shared by every checkpoint that names it.
--   segments        runs of elements of long lists and big dicts, stored once per thread under their hash.
--   writes          what the tasks of a super-step wrote, hung on the checkpoint the step started from.
--   ancestors       checkpoints that were pruned, but whose writes or values the delta channels of ones that
--                   survive are replayed from.
--   tombstones      threads that were deleted: a run still going must not bring one back by halves.
--   prunes          threads that lost checkpoints: a run still going must not build on one that is gone.
--
-- thread_id leads every key, so each table can be partitioned or distributed by it as it is. Text keys
-- are COLLATE "C": bytewise order, which is the order Python compares strings in, and cheap. Values and
-- metadata are bytes of the saver's serializer, opaque here; jsonb holds only what filters may read.
-- writes has no foreign key: a task's writes may be saved before the checkpoint they hang on.

CREATE TABLE {schema}.checkpoints (
    thread_id            text COLLATE "C" NOT NULL,
    checkpoint_ns        text COLLATE "C" NOT NULL,
    checkpoint_id        text COLLATE "C" NOT NULL, -- the runtime's own id, a UUIDv6 today
    ulid                 uuid CHECK (ulid IS NOT NULL), -- the order of list, of latest, of before
    created_at           timestamptz NOT NULL DEFAULT now(),
    parent_checkpoint_id text COLLATE "C",
    root_checkpoint_id   text COLLATE "C",          -- of a subgraph's: the root graph's that its call started from
    run_id               text COLLATE "C",
    format               integer NOT NULL,          -- the checkpoint's v; below 4 the parent holds its sends
    type                 text NOT NULL,             -- of checkpoint, as the serializer named it
    checkpoint           bytea NOT NULL,            -- the checkpoint, with small values and without large ones
    metadata_type        text NOT NULL,
    metadata             bytea NOT NULL,
    metadata_index       jsonb NOT NULL,            -- the metadata that filters can be decided on here
    value_channels       text[] COLLATE "C" NOT NULL, -- channels that have a value, and, pairwise, its version
    value_versions       text[] COLLATE "C" NOT NULL, -- in channel_values; NULL if it is inside the checkpoint
    delta_channels       text[] COLLATE "C",        -- channels to be replayed from ancestors' writes, if any
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

-- Partial, over every row, so that the planner can use them only where ulid is asked for. Else it may look an id up
-- by walking its thread in one of these, which are smaller than the primary key, as long as it takes threads for
-- short. (Which is why ulid is not declared NOT NULL: the planner would see through it.)
CREATE UNIQUE INDEX checkpoints_ulid_key ON {schema}.checkpoints (thread_id, checkpoint_ns, ulid)
    WHERE ulid IS NOT NULL;
CREATE INDEX checkpoints_thread_ulid_idx ON {schema}.checkpoints (thread_id, ulid)
    WHERE ulid IS NOT NULL; -- a thread's order, across namespaces
CREATE INDEX checkpoints_run_id_idx ON {schema}.checkpoints (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE {schema}.ancestors (
    thread_id            text COLLATE "C" NOT NULL,
    checkpoint_ns        text COLLATE "C" NOT NULL,
    checkpoint_id        text COLLATE "C" NOT NULL,
    parent_checkpoint_id text COLLATE "C",
    type                 text,                        -- of checkpoint, kept only where a value inside it is needed
    checkpoint           bytea,
    value_channels       text[] COLLATE "C" NOT NULL, -- of those that are replayed, the ones that start here
    value_versions       text[] COLLATE "C" NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

CREATE TABLE {schema}.channel_values (
    thread_id     text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    channel       text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    type          text NOT NULL,
    data          bytea,   -- the whole value, or
    segments      bytea[], -- the hashes of the segments it is made of, in order
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);

CREATE TABLE {schema}.segments (
    thread_id text COLLATE "C" NOT NULL,
    hash      bytea NOT NULL,
    data      bytea NOT NULL,
    PRIMARY KEY (thread_id, hash)
);

CREATE TABLE {schema}.writes (
    thread_id     text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    task_id       text COLLATE "C" NOT NULL,
    idx           integer NOT NULL,
    task_path     text COLLATE "C" NOT NULL,
    channel       text COLLATE "C" NOT NULL,
    type          text NOT NULL,
    value         bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);

CREATE TABLE {schema}.tombstones (
    thread_id  text COLLATE "C" NOT NULL PRIMARY KEY,
    ulid       uuid NOT NULL, -- of the erasure, as its receipt names it
    deleted_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {schema}.prunes (
    thread_id text COLLATE "C" NOT NULL PRIMARY KEY,
    pruned_at timestamptz NOT NULL DEFAULT now()
);

-- lz4 where the server was built with it: about as small as pglz, several times as fast.
DO $lz4$
BEGIN
    ALTER TABLE {schema}.checkpoints ALTER COLUMN checkpoint SET COMPRESSION lz4;
    ALTER TABLE {schema}.channel_values ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {schema}.segments ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {schema}.writes ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$lz4$;
