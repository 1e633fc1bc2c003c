-- Delete checkpoints of a thread.
-- Parameters: thread; ns, id: parallel arrays. Columns: rows and bytes deleted.
-- About `IS TRUE` see leave_ancestors.sql.
WITH deleted AS (
    DELETE FROM {schema}.checkpoints c WHERE c.thread_id = %(thread)s::text
    AND ((c.checkpoint_ns, c.checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
    RETURNING pg_column_size(c.checkpoint) + pg_column_size(c.metadata) + pg_column_size(c.metadata_index)
        + pg_column_size(c.value_channels) + pg_column_size(c.value_versions) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
