-- Return version, name and checksum of the applied migrations, oldest first.
SELECT version, name, checksum FROM {schema}.schema_migrations ORDER BY version
