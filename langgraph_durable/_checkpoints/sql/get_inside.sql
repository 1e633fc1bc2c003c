-- The serialized body of a checkpoint, or of the ancestor it left, if a delta channel still needs that.
-- Parameters: thread, ns, id. Result columns: type, checkpoint.
SELECT type, checkpoint FROM {schema}.checkpoints
WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
UNION ALL
SELECT type, checkpoint FROM {schema}.ancestors
WHERE thread_id = %(thread)s::text AND checkpoint_ns = %(ns)s::text AND checkpoint_id = %(id)s::text
LIMIT 1
