-- Store cached values, and delete some that have expired, so that the table does not grow for ever.
-- Parameters: namespaces, keys, types, values, seconds to live (arrays of equal length; NULL for never).
WITH expired AS MATERIALIZED (
    SELECT namespace, key FROM {schema}.cache
    WHERE expires_at < clock_timestamp() - interval '1 minute'
    ORDER BY expires_at LIMIT 20
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM {schema}.cache c USING expired e
    WHERE c.namespace = e.namespace AND c.key = e.key
    AND NOT (c.namespace, c.key) IN (SELECT * FROM unnest(%(namespaces)s::bytea[], %(keys)s::bytea[]))
)
INSERT INTO {schema}.cache (namespace, key, type, value, expires_at)
SELECT namespace, key, type, value, clock_timestamp() + make_interval(secs => seconds)
FROM unnest(
    %(namespaces)s::bytea[], %(keys)s::bytea[], %(types)s::text[], %(values)s::bytea[], %(seconds)s::float8[]
) AS given (namespace, key, type, value, seconds)
ORDER BY namespace, key -- one order for all, so that two of these cannot deadlock
ON CONFLICT (namespace, key) DO UPDATE
SET type = excluded.type, value = excluded.value, expires_at = excluded.expires_at
