-- Set how a batch waits for locks and how its statements are planned, until the transaction ends.
-- lock_timeout: with its unit; jit, plan_cache_mode: values, NULL to leave them as they are
SELECT set_config('lock_timeout', %(lock_timeout)s::text, true),
    set_config('jit', coalesce(%(jit)s::text, current_setting('jit')), true),
    set_config('plan_cache_mode', coalesce(%(plan_cache_mode)s::text, current_setting('plan_cache_mode')), true)
