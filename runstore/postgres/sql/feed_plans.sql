-- feed_plans turns off, until the end of its transaction, the plans with which a page of the feed reads and
-- sorts all events behind its position. It is sent where sessions may lack the settings of
-- engine.settings: those of a proxy and of a caller's pool.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)
