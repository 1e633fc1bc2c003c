-- Store values of delta channels at checkpoints that had only what the channels are replayed from.
-- Parameters: the columns of {given} (FOLD_CHANNELS in put.py), and bytes; see put_writes_first_wins.sql.
-- No result columns. A checkpoint that was deleted meanwhile, or has one of the values already, stays as it is.
WITH given AS {given},

new_segments AS (
    INSERT INTO {schema}.segments (thread_id, hash, data)
    SELECT g.thread,
        substr(%(bytes)s::bytea, g.base + g.hashes_at + 20 * (s.number - 1)::int + 1, 20),
        substr(%(bytes)s::bytea, g.base + s.at + 1, s.size)
    FROM given g CROSS JOIN LATERAL unnest(g.segment_ats, g.segment_sizes) WITH ORDINALITY AS s (at, size, number)
    ON CONFLICT DO NOTHING
),

new_values AS (
    INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, data, segments)
    SELECT g.thread, g.ns, v.channel, v.version, v.type, substr(%(bytes)s::bytea, g.base + v.at + 1, v.size),
        CASE WHEN v.entries_at IS NOT NULL THEN array(
            SELECT substr(%(bytes)s::bytea, g.base + v.entries_at + i + 1, 20)
            FROM generate_series(0, v.entries_size - 20, 20) AS i ORDER BY i
        ) END
    FROM given g CROSS JOIN LATERAL unnest(
        g.channels, g.versions, g.types, g.data_ats, g.data_sizes, g.entries_ats, g.entries_sizes
    ) AS v (channel, version, type, at, size, entries_at, entries_size)
    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE
    SET type = excluded.type, data = excluded.data, segments = excluded.segments
)
UPDATE {schema}.checkpoints SET
    value_channels = value_channels || g.channels, value_versions = value_versions || g.versions,
    delta_channels = nullif(array(
        SELECT d FROM unnest(delta_channels) AS d WHERE d <> ALL (g.channels)
    ), '{}')
FROM given g
WHERE thread_id = g.thread AND checkpoint_ns = g.ns AND checkpoint_id = g.id AND delta_channels @> g.channels
