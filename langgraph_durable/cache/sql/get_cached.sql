-- Return the cached values of keys that have not expired.
-- Parameters: namespaces, keys (arrays of hashes, in pairs).
-- Columns: namespace, key, type, value.
SELECT c.namespace, c.key, c.type, c.value
FROM unnest(%(namespaces)s::bytea[], %(keys)s::bytea[]) AS wanted (namespace, key)
JOIN {schema}.cache c ON c.namespace = wanted.namespace AND c.key = wanted.key
WHERE c.expires_at IS NULL OR c.expires_at > clock_timestamp()
