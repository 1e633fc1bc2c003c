"""`python -m langgraph_durable`: the command line."""

import sys

from langgraph_durable.cli.main import main

sys.exit(main())
