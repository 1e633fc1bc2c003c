-- Fail unless a migration is the last one applied; the cast's error names both.
-- %s: version; %s: version
SELECT CASE WHEN max(version) = %s::integer THEN max(version) ELSE (
    'the schema is at migration ' || coalesce(max(version), 0) || ', and this upgrades from ' || %s::integer
)::integer END FROM {schema}.schema_migrations
