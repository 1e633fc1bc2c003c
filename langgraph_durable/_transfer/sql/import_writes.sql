-- Store writes of an imported thread. They have no time: their checkpoint's is the best that is known.
-- Parameters: the columns of {given} (see put.py), and bytes; see put_checkpoints.sql. No result columns.
WITH given AS {given}
INSERT INTO {schema}.writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value, stored_at
)
SELECT g.thread, g.ns, g.id, g.task_id, g.task_path, w.idx, w.channel, w.type,
    substr(%(bytes)s::bytea, g.base + w.at + 1, w.size), NULL
FROM given g CROSS JOIN LATERAL unnest(g.indexes, g.channels, g.types, g.value_ats, g.value_sizes)
AS w (idx, channel, type, at, size)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
