-- List the effects that were requested by the tasks of a checkpoint, or whose outcome was given to them, oldest first.
--
-- Those of a root graph's checkpoint include the effects of the subgraphs that its tasks called, as long as the
-- subgraphs' checkpoints exist. An effect has the namespace of its task; the enclosing graphs' are its prefixes.
--
-- Parameters: thread_id, checkpoint_ns, checkpoint_id (NULL: the latest). Columns: those of an EffectRow.
WITH target AS MATERIALIZED (
    SELECT coalesce(%(checkpoint_id)s::text, (
        SELECT checkpoint_id FROM {schema}.checkpoints
        WHERE thread_id = %(thread_id)s::text AND checkpoint_ns = %(checkpoint_ns)s::text AND ulid IS NOT NULL
        ORDER BY ulid DESC LIMIT 1
    )) AS checkpoint_id
)
SELECT {effect_columns}
FROM target t JOIN {schema}.effects e ON e.thread_id = %(thread_id)s::text
WHERE e.checkpoint_id = t.checkpoint_id
AND (%(checkpoint_ns)s::text = '' OR starts_with(e.checkpoint_ns, %(checkpoint_ns)s::text || '|'))
OR %(checkpoint_ns)s::text = '' AND e.checkpoint_id <> t.checkpoint_id AND EXISTS (
    SELECT FROM string_to_array(e.checkpoint_ns, '|') AS parts
    CROSS JOIN LATERAL generate_series(1, cardinality(parts)) AS n CROSS JOIN LATERAL (
        SELECT root_checkpoint_id FROM {schema}.checkpoints c
        WHERE c.thread_id = e.thread_id AND c.checkpoint_ns = array_to_string(parts[:n], '|')
        AND c.checkpoint_id = e.checkpoint_id
        LIMIT 1
    ) c WHERE c.root_checkpoint_id = t.checkpoint_id
)
-- A delivery names the checkpoints of all graphs that lead to its task. A root graph's lists those inside subgraphs.
OR e.note_count > 0 AND EXISTS (
    SELECT FROM {schema}.effect_deliveries d
    WHERE d.effect_id = e.effect_id AND d.checkpoints ->> %(checkpoint_ns)s::text = t.checkpoint_id
    AND (%(checkpoint_ns)s::text = '' OR starts_with(d.checkpoint_ns, %(checkpoint_ns)s::text || '|'))
)
ORDER BY e.effect_id
