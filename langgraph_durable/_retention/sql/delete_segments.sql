-- Delete the segments that no value of the thread names, directly or by an index. Runs after values were deleted.
-- Parameters: thread. Columns: rows and bytes deleted.
WITH entry AS MATERIALIZED (
    SELECT DISTINCT e.hash FROM {schema}.channel_values v CROSS JOIN unnest(v.segments) AS e (hash)
    WHERE v.thread_id = %(thread)s::text AND v.segments IS NOT NULL
), named AS (
    SELECT hash FROM entry
    UNION
    SELECT substr(s.data, i, 20)
    FROM entry e CROSS JOIN LATERAL (
        SELECT s.data FROM {schema}.segments s WHERE s.thread_id = %(thread)s::text AND s.hash = e.hash LIMIT 1
    ) s CROSS JOIN generate_series(1, length(s.data), 20) AS i
    WHERE substr(e.hash, 1, 1) IN ('\x01', '\x03')
), deleted AS (
    DELETE FROM {schema}.segments s
    WHERE s.thread_id = %(thread)s::text AND (s.hash IN (SELECT hash FROM named)) IS NOT TRUE
    RETURNING pg_column_size(s.data) AS size
)
SELECT count(*), coalesce(sum(size), 0) FROM deleted
