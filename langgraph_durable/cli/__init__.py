"""The command line: `python -m langgraph_durable COMMAND`."""
