-- Copy checkpoints that are about to be deleted to the ancestors of delta channels, with the values of some channels.
-- Parameters: thread; ns, id: parallel arrays of checkpoints; seed_ns, seed_id, seed_channel: parallel arrays of the
-- values.
--
-- `IS TRUE` keeps the condition from becoming a join. The planner expects a thread to have few rows, so the join would
-- compare each row with each key; a subplan is a hash lookup.
INSERT INTO {schema}.ancestors
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id,
    CASE WHEN s.inside THEN c.type END, CASE WHEN s.inside THEN c.checkpoint END, s.channels, s.versions
FROM unnest(%(ns)s::text[], %(id)s::text[]) AS k (ns, id)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.checkpoints c
    WHERE c.thread_id = %(thread)s::text AND c.checkpoint_ns = k.ns AND c.checkpoint_id = k.id
    OFFSET 0
) c
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(v.channel), '{}') AS channels, coalesce(array_agg(v.version), '{}') AS versions,
        coalesce(bool_or(v.version IS NULL), false) AS inside
    FROM unnest(c.value_channels, c.value_versions) AS v (channel, version)
    WHERE ((k.ns, k.id, v.channel) IN (
        SELECT * FROM unnest(%(seed_ns)s::text[], %(seed_id)s::text[], %(seed_channel)s::text[])
    )) IS TRUE
) s
ON CONFLICT DO NOTHING
