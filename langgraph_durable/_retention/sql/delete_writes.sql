-- Delete the writes of checkpoints, except those to some channels.
-- Parameters: thread; ns, id: parallel arrays of checkpoints; kept_ns, kept_id, kept_channel: parallel arrays of the
-- channels whose writes stay. Columns: rows and bytes deleted.
-- About `IS TRUE` see leave_ancestors.sql.
WITH deleted AS (
    DELETE FROM {schema}.writes w WHERE w.thread_id = %(thread)s::text
    AND ((w.checkpoint_ns, w.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    AND ((w.checkpoint_ns, w.checkpoint_id, w.channel) IN (
        SELECT * FROM unnest(%(kept_ns)s::text[], %(kept_id)s::text[], %(kept_channel)s::text[])
    )) IS NOT TRUE
    RETURNING pg_column_size(w.value) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
