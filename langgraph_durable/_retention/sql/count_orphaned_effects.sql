-- The number of effects that need a decision and whose thread was deleted: no run will ask about them again.
-- Columns: count.
SELECT count(*) FROM {schema}.effects e
WHERE e.thread_id IS NOT NULL AND (e.state = 'unknown' OR e.state = 'issued' AND e.lease_until < now())
AND NOT EXISTS (SELECT FROM {schema}.checkpoints c WHERE c.thread_id = e.thread_id)
