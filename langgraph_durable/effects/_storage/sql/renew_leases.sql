-- Extend leases whose owner is alive, from now on.
--
-- Parameters: effect ids, their fences, their leases (parallel arrays).
-- Columns: effect_id, of each lease that its owner still holds.
UPDATE {schema}.effects e SET lease_until = now() + k.lease
FROM unnest(%s::uuid[], %s::bigint[], %s::interval[]) AS k (effect_id, fence, lease)
WHERE e.effect_id = k.effect_id AND e.fence = k.fence AND e.state IN ('claimed', 'issued') AND {flush_at_commit}
RETURNING e.effect_id
