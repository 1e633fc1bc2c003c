-- Store writes of tasks; of two writes of one task and index, the first wins.
-- Parameters: the columns of {given} (see put.py), and bytes: the bytes of all rows in one string. A row's bytes begin
-- at its `base`; columns that end in _at or _ats are places counted from there. No result columns.
WITH given AS {given}
INSERT INTO {schema}.writes AS stored (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value
)
SELECT g.thread, g.ns, g.id, g.task_id, g.task_path, w.idx, w.channel, w.type,
    substr(%(bytes)s::bytea, g.base + w.at + 1, w.size)
FROM given g CROSS JOIN LATERAL unnest(g.indexes, g.channels, g.types, g.value_ats, g.value_sizes)
AS w (idx, channel, type, at, size)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
