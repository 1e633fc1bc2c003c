"""The statements that tell what is stored."""

from __future__ import annotations

from typing_extensions import LiteralString

from langgraph_durable._postgres.statement import Statement


def _sizes(where: LiteralString) -> LiteralString:
    """For each table its name, its rows, the bytes of their columns as stored, and of what these hold, whole.

    Lengths and sizes are known without reading what is stored out of line. How long a value is that is in segments, its
    first 6 bytes tell; of one that is compressed, the first 4.
    """
    return (
        """
SELECT 'checkpoints', count(*), sum(pg_column_size(checkpoint) + pg_column_size(metadata)
    + pg_column_size(metadata_index) + pg_column_size(value_channels) + pg_column_size(value_versions)),
    sum(length(checkpoint) + length(metadata))
FROM {schema}.checkpoints"""
        + where
        + """
UNION ALL
SELECT 'ancestors', count(*), sum(coalesce(pg_column_size(checkpoint), 0) + pg_column_size(value_channels)),
    sum(length(checkpoint))
FROM {schema}.ancestors"""
        + where
        + """
UNION ALL
SELECT 'channel_values', count(*), sum(coalesce(pg_column_size(data), 0) + coalesce(pg_column_size(segments), 0)),
    sum(CASE
        WHEN segments IS NOT NULL THEN ('x' || encode(substr(data, 1, 6), 'hex'))::bit(48)::bigint
        WHEN starts_with(type, 'zlib:') THEN ('x' || encode(substr(data, 1, 4), 'hex'))::bit(32)::bigint
        ELSE length(data)
    END)
FROM {schema}.channel_values"""
        + where
        + """
UNION ALL
SELECT 'segments', count(*), sum(pg_column_size(data)), 0
FROM {schema}.segments"""
        + where
        + """
UNION ALL
SELECT 'writes', count(*), sum(pg_column_size(value)), sum(CASE
        WHEN starts_with(type, 'zlib:') THEN ('x' || encode(substr(value, 1, 4), 'hex'))::bit(32)::bigint
        ELSE length(value)
    END)
FROM {schema}.writes"""
        + where
    )


GET_SIZES_OF_THREAD = Statement(_sizes(" WHERE thread_id = %(thread)s::text"))

# With indexes, free space and what is stored out of line.
GET_SIZES = Statement(
    """
SELECT t.name, t.rows, (
    SELECT pg_total_relation_size(c.oid) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = t.name
), t.logical
FROM ("""
    + _sizes("")
    + ") AS t (name, rows, bytes, logical)"
)
