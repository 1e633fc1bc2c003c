-- Return whether the table of applied migrations exists, and whether the schema was renamed since its functions were
-- made. Not by to_regclass, see find_schema.sql.
-- The functions' bodies name their schema. A name of 63 bytes is a longer one truncated, which the bodies have in full.
WITH ours AS (SELECT oid, nspname FROM pg_catalog.pg_namespace WHERE nspname = {schema_name}::name)
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN ours ON ours.oid = c.relnamespace WHERE c.relname = 'schema_migrations'
), EXISTS (
    SELECT FROM pg_catalog.pg_proc p JOIN ours ON ours.oid = p.pronamespace
    WHERE p.proname IN ('put_checkpoints_v1', 'get_checkpoint_v1') AND position(
        '"' || replace(ours.nspname, '"', '""') || CASE WHEN octet_length(ours.nspname) < 63 THEN '".' ELSE '' END
        IN p.prosrc
    ) = 0
)
