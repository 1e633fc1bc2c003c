-- Fragment: a condition that is always true. It turns synchronous_commit on for this transaction if the role or the
-- database has it off, because an effect whose record is lost in a crash would run again. Other values are the
-- operator's choice. Each writing statement evaluates it for a row that it writes, so it costs no round trip.
CASE
    WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) = 'on'
    ELSE true
END
