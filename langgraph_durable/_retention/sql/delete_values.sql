-- Delete values of channels.
-- Parameters: thread; ns, channel, version: parallel arrays. Columns: rows and bytes deleted.
-- About `IS TRUE` see leave_ancestors.sql.
WITH deleted AS (
    DELETE FROM {schema}.channel_values v WHERE v.thread_id = %(thread)s::text
    AND ((v.checkpoint_ns, v.channel, v.version) IN (
        SELECT * FROM unnest(%(ns)s::text[], %(channel)s::text[], %(version)s::text[])
    )) IS TRUE
    RETURNING coalesce(pg_column_size(v.data), 0) + coalesce(pg_column_size(v.segments), 0) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
