-- Take the lock of set-ups of this schema until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('setup ' || {schema_name}, 0))
