-- Delete a thread, unless it has unresolved effects: their rows would never be found again. `force` deletes it anyway.
-- Effects are kept without arguments, results, errors and notes. Their scope is renamed, so a new thread of the same id
-- starts with no effects.
-- Parameters: thread, ulid (of the tombstone), force, always (whether to leave a tombstone even without checkpoints).
-- Columns: table, rows and bytes deleted, the server's time, unresolved effects (on the first row; if any, nothing was
-- deleted).
WITH unresolved AS MATERIALIZED (
    SELECT count(*) AS effects FROM {schema}.effects
    WHERE thread_id = %(thread)s::text AND state IN ('issued', 'unknown') AND NOT %(force)s::bool
), doomed AS MATERIALIZED (
    SELECT %(thread)s::text AS thread_id FROM unresolved WHERE effects = 0
), c AS (
    DELETE FROM {schema}.checkpoints WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(checkpoint) + pg_column_size(metadata) + pg_column_size(metadata_index)
        + pg_column_size(value_channels) + pg_column_size(value_versions) AS size
), a AS (
    DELETE FROM {schema}.ancestors WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING coalesce(pg_column_size(checkpoint), 0) + pg_column_size(value_channels) AS size
), v AS (
    DELETE FROM {schema}.channel_values WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING coalesce(pg_column_size(data), 0) + coalesce(pg_column_size(segments), 0) AS size
), s AS (
    DELETE FROM {schema}.segments WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(data) AS size
), w AS (
    DELETE FROM {schema}.writes WHERE thread_id = (SELECT thread_id FROM doomed)
    RETURNING pg_column_size(value) AS size
), r AS (
    DELETE FROM {schema}.effect_results WHERE effect_id IN (
        SELECT effect_id FROM {schema}.effects WHERE thread_id = (SELECT thread_id FROM doomed)
    ) RETURNING pg_column_size(data) AS size
), e AS (
    UPDATE {schema}.effects SET input_type = NULL, input = NULL, result = NULL, error = NULL, expired_at = now(),
        scope_thread = CASE WHEN scope_thread <> '' THEN scope_thread || ' erased ' || %(ulid)s::uuid::text ELSE '' END
    WHERE thread_id = (SELECT thread_id FROM doomed) AND (expired_at IS NULL OR scope_thread = thread_id)
), events AS (
    -- The history stays; errors and notes, which may quote arguments, do not.
    UPDATE {schema}.effect_events SET reason = NULL WHERE reason IS NOT NULL AND effect_id IN (
        SELECT effect_id FROM {schema}.effects WHERE thread_id = (SELECT thread_id FROM doomed)
    )
), d AS (
    -- Where effects were handed out is only asked as long as the checkpoints are stored.
    DELETE FROM {schema}.effect_deliveries WHERE effect_id IN (
        SELECT effect_id FROM {schema}.effects WHERE thread_id = (SELECT thread_id FROM doomed)
    )
), p AS (
    DELETE FROM {schema}.prunes WHERE thread_id = (SELECT thread_id FROM doomed)
), t AS (
    INSERT INTO {schema}.tombstones (thread_id, ulid)
    SELECT thread_id, %(ulid)s::uuid FROM doomed WHERE %(always)s::bool OR EXISTS (SELECT FROM c)
    ON CONFLICT (thread_id) DO UPDATE SET ulid = excluded.ulid, deleted_at = now()
)
SELECT 'checkpoints', count(*), coalesce(sum(size), 0), now(), (SELECT effects FROM unresolved) FROM c
UNION ALL SELECT 'ancestors', count(*), coalesce(sum(size), 0), now(), 0 FROM a
UNION ALL SELECT 'channel_values', count(*), coalesce(sum(size), 0), now(), 0 FROM v
UNION ALL SELECT 'segments', count(*), coalesce(sum(size), 0), now(), 0 FROM s
UNION ALL SELECT 'writes', count(*), coalesce(sum(size), 0), now(), 0 FROM w
UNION ALL SELECT 'effect_results', count(*), coalesce(sum(size), 0), now(), 0 FROM r
