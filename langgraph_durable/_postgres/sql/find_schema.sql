-- Return whether the schema exists.
-- Not by to_regnamespace: in a transaction that waited for an advisory lock, its cache is older than the lock.
-- The cast to name truncates a long name as CREATE does.
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_name}::name)
