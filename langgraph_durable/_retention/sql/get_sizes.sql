-- The size of what is stored, by table: of one thread, or of all.
-- Lengths and sizes are known without reading values that are stored out of line. A value in segments begins with its
-- length in 6 bytes, a compressed one in 4.
-- Parameters: thread (NULL for all).
-- Columns: table; rows; bytes (of all threads, with indexes, free space and out-of-line storage); logical bytes (whole
-- and uncompressed).
SELECT t.name, t.rows, CASE WHEN %(thread)s::text IS NOT NULL THEN t.bytes ELSE (
    SELECT pg_total_relation_size(c.oid) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = t.name
) END, t.logical
FROM (
    SELECT 'checkpoints' AS name, count(*) AS rows, sum(pg_column_size(checkpoint) + pg_column_size(metadata)
        + pg_column_size(metadata_index) + pg_column_size(value_channels) + pg_column_size(value_versions)) AS bytes,
        sum(length(checkpoint) + length(metadata)) AS logical
    FROM (
        SELECT * FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
        UNION ALL SELECT * FROM {schema}.checkpoints WHERE %(thread)s::text IS NULL
    ) AS c
    UNION ALL
    SELECT 'ancestors', count(*), sum(coalesce(pg_column_size(checkpoint), 0) + pg_column_size(value_channels)),
        sum(length(checkpoint))
    FROM (
        SELECT * FROM {schema}.ancestors WHERE thread_id = %(thread)s::text
        UNION ALL SELECT * FROM {schema}.ancestors WHERE %(thread)s::text IS NULL
    ) AS a
    UNION ALL
    SELECT 'channel_values', count(*), sum(coalesce(pg_column_size(data), 0) + coalesce(pg_column_size(segments), 0)),
        sum(CASE
            WHEN segments IS NOT NULL THEN ('x' || encode(substr(data, 1, 6), 'hex'))::bit(48)::bigint
            WHEN starts_with(type, 'zlib:') THEN ('x' || encode(substr(data, 1, 4), 'hex'))::bit(32)::bigint
            ELSE length(data)
        END)
    FROM (
        SELECT * FROM {schema}.channel_values WHERE thread_id = %(thread)s::text
        UNION ALL SELECT * FROM {schema}.channel_values WHERE %(thread)s::text IS NULL
    ) AS v
    UNION ALL
    SELECT 'segments', count(*), sum(pg_column_size(data)), 0
    FROM (
        SELECT * FROM {schema}.segments WHERE thread_id = %(thread)s::text
        UNION ALL SELECT * FROM {schema}.segments WHERE %(thread)s::text IS NULL
    ) AS s
    UNION ALL
    SELECT 'writes', count(*), sum(pg_column_size(value)), sum(CASE
            WHEN starts_with(type, 'zlib:') THEN ('x' || encode(substr(value, 1, 4), 'hex'))::bit(32)::bigint
            ELSE length(value)
        END)
    FROM (
        SELECT * FROM {schema}.writes WHERE thread_id = %(thread)s::text
        UNION ALL SELECT * FROM {schema}.writes WHERE %(thread)s::text IS NULL
    ) AS w
) AS t
