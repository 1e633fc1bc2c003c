-- Set when imported checkpoints of a thread were made: by their own record, not the time of the import.
-- Parameters: thread, namespaces, ids, times. No result columns.
UPDATE {schema}.checkpoints c SET created_at = t.at
FROM unnest(%(namespaces)s::text[], %(ids)s::text[], %(times)s::timestamptz[]) AS t (ns, id, at)
WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = t.ns AND c.checkpoint_id = t.id
