-- A thread's checkpoints, parents before their children: pruned ones that are left as ancestors, then by their order.
-- Parameters: thread. Columns: checkpoint_ns, checkpoint_id, parent_checkpoint_id.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM (
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, NULL::uuid AS ulid
    FROM {schema}.ancestors WHERE thread_id = %(thread)s::text
    UNION ALL
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, ulid
    FROM {schema}.checkpoints WHERE thread_id = %(thread)s::text
) AS found
ORDER BY ulid NULLS FIRST, checkpoint_id
