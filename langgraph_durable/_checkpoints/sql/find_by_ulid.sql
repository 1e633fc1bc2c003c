-- The id of the checkpoint that an id or a ULID names; the given id if there is none.
-- An id that is stored comes first: a runtime may use ULIDs as its ids.
-- Parameters: thread_id, checkpoint_ns, id, ulid. Result columns: checkpoint_id.
SELECT coalesce((
    SELECT checkpoint_id FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text
    AND checkpoint_id = %(id)s::text
), (
    SELECT checkpoint_id FROM {schema}.checkpoints
    WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text AND ulid = %(ulid)s::uuid
), %(id)s::text)
