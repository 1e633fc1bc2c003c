"""Compare this saver with langgraph-checkpoint-postgres, on one server, in one run."""
