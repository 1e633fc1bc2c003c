-- The server's time.
-- Columns: now.
SELECT now()
