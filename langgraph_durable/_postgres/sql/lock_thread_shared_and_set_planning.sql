-- Take a thread's lock, shared, and set how the transaction's other statements are planned.
-- thread: thread id; jit, plan_cache_mode: values for this transaction, NULL to leave them as they are
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || %(thread)s::text, 0)),
    set_config('jit', coalesce(%(jit)s::text, current_setting('jit')), true),
    set_config('plan_cache_mode', coalesce(%(plan_cache_mode)s::text, current_setting('plan_cache_mode')), true)
