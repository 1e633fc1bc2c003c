-- Store checkpoints, each with the channel values and segments that it sends. The function is in migration 6.
-- Parameters: rows, base and bytes (`gather`). Result columns: number (of the row), verdict (Verdict in put.py), and
-- what was found to be missing: channels, hashes of segments.
SELECT number, verdict, missing, lacking
FROM {schema}.put_checkpoints_v1(%(rows)s::json, %(base)s::int[], %(bytes)s::bytea)
