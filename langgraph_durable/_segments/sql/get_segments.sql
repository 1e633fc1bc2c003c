-- The data of segments, of several threads, since a page may be of any.
-- Parameters, in order: thread_ids, hashes (parallel arrays). Result columns: thread_id, hash, data.
SELECT k.thread_id, k.hash, s.data
FROM unnest(%s::text[], %s::bytea[]) AS k (thread_id, hash) CROSS JOIN LATERAL (
    SELECT s.data FROM {schema}.segments s WHERE s.thread_id = k.thread_id AND s.hash = k.hash LIMIT 1
) s
