-- The tables of langgraph-checkpoint-postgres, and their columns.
-- Parameters: schema (NULL for the search path). Columns: schema, table, columns.
SELECT n.nspname::text, c.relname::text, array(
    SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
)
FROM unnest(ARRAY['checkpoints', 'checkpoint_blobs', 'checkpoint_writes']) AS t
JOIN pg_class c ON c.oid = to_regclass(coalesce(quote_ident(%(schema)s::text) || '.', '') || t)
JOIN pg_namespace n ON n.oid = c.relnamespace
