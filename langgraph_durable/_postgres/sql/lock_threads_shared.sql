-- Take the locks of several threads, shared.
-- %s: thread ids, locked in this order
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
