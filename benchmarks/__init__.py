"""Figures beside langgraph-checkpoint-postgres, on one server, in one run."""
