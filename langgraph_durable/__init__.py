"""A LangGraph checkpoint saver on Postgres that survives what production does to agents."""

__version__ = "0.1.0"
