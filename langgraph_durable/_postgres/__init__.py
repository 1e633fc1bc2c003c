"""SQL statements, connections, transactions, retries and group commit: nothing of checkpoints."""
