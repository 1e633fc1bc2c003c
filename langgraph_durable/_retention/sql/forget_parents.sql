-- Clear the parent of checkpoints whose parent is deleted without leaving an ancestor.
-- Parameters: thread; ns, id: parallel arrays.
-- About `IS TRUE` see leave_ancestors.sql.
UPDATE {schema}.checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = %(thread)s::text
AND ((checkpoint_ns, checkpoint_id) IN (SELECT * FROM unnest(%(ns)s::text[], %(id)s::text[]))) IS TRUE
