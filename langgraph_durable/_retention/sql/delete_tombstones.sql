-- Delete old tombstones.
-- Parameters: their minimum age.
DELETE FROM {schema}.tombstones WHERE deleted_at < now() - %s::interval
