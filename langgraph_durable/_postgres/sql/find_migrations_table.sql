-- Return whether the table of applied migrations exists; not by to_regclass, see find_schema.sql.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = 'schema_migrations'
)
