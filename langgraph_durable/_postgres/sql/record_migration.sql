-- Record an applied migration.
-- %s: version; %s: name; %s: checksum
INSERT INTO {schema}.schema_migrations (version, name, checksum) VALUES (%s, %s, %s)
