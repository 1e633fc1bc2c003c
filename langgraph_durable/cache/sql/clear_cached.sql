-- Delete the cached values of namespaces, or all.
-- Parameters: namespaces (an array of hashes; NULL for all).
DELETE FROM {schema}.cache
WHERE %(namespaces)s::bytea[] IS NULL OR namespace = ANY(%(namespaces)s::bytea[])
