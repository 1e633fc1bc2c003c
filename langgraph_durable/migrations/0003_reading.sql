-- langgraph_durable 0003: for those who read: who waits for a human, since when, and what happened in which order.
--
-- A write has a time of its own: a question may be asked, answered and followed by the next one, on one checkpoint.
-- Writes from before this migration have none; their checkpoint's is the best that is known of them.

ALTER TABLE {schema}.writes ADD COLUMN stored_at timestamptz;
ALTER TABLE {schema}.writes ALTER COLUMN stored_at SET DEFAULT now();

-- Questions of root graphs, answered ones too: a page of those that wait goes from thread to thread in it.
CREATE INDEX writes_interrupts_idx ON {schema}.writes (thread_id, checkpoint_id, task_id)
    WHERE channel = '__interrupt__' AND checkpoint_ns = '';
