-- Delete ancestors of a thread.
-- Parameters: thread; ns, id: parallel arrays. Columns: rows and bytes deleted.
-- About `IS TRUE` see leave_ancestors.sql.
WITH deleted AS (
    DELETE FROM {schema}.ancestors a WHERE a.thread_id = %(thread)s::text
    AND ((a.checkpoint_ns, a.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    RETURNING coalesce(pg_column_size(a.checkpoint), 0) + pg_column_size(a.value_channels) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
