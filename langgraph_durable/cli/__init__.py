"""The command line: `langgraph-durable COMMAND`, or `python -m langgraph_durable COMMAND`."""
