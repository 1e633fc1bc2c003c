-- Keep in the history what an owner reported after another one had taken its effect over.
--
-- Parameters: effect_id, fence (the reporting owner's), actor, reason. Columns: none.
INSERT INTO {schema}.effect_events (effect_id, from_state, to_state, fence, attempt, actor, reason)
SELECT effect_id, state, state, %(fence)s::bigint, attempts, %(actor)s::text, %(reason)s::text
FROM {schema}.effects WHERE effect_id = %(effect_id)s::uuid AND {flush_at_commit}
