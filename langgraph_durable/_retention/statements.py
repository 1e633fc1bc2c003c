"""The statement that folds delta channels, from the fragments of puts."""

from __future__ import annotations

from langgraph_durable._checkpoints.put_statements import SENT, SENT_COLUMNS
from langgraph_durable._postgres.statement import RowsStatement

FOLD_CHANNELS = RowsStatement(
    {"thread": "text", "ns": "text", "id": "text", **SENT_COLUMNS},
    """WITH given AS {given}, p AS MATERIALIZED (
    SELECT *, 'fine' AS verdict FROM given
), """
    + SENT
    + """    ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE
    SET type = excluded.type, data = excluded.data, segments = excluded.segments
)
UPDATE {schema}.checkpoints SET
    value_channels = value_channels || p.channels, value_versions = value_versions || p.versions,
    delta_channels = nullif(array(
        SELECT d FROM unnest(delta_channels) AS d WHERE d <> ALL (p.channels)
    ), '{{}}')
FROM p WHERE thread_id = p.thread AND checkpoint_ns = p.ns AND checkpoint_id = p.id AND delta_channels @> p.channels
""",
)
