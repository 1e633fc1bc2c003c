-- Take a thread's lock, exclusive: waits for every put of the thread, and keeps later ones waiting.
-- %s: thread id
SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))
