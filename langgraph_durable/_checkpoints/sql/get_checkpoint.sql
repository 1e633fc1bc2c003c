-- Fetch one checkpoint with its values and writes; the latest of its namespace if id is NULL. The function is in
-- migration 6.
-- Parameters: thread, ns, id; or_ancestor: whether to fetch the ancestor that a pruned checkpoint left.
-- Result columns: see page.sql.
SELECT * FROM {schema}.get_checkpoint_v1(%(thread)s::text, %(ns)s::text, %(id)s::text, %(or_ancestor)s::boolean)
