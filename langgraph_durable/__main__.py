"""`python -m langgraph_durable`."""

import sys

from langgraph_durable.cli import main

sys.exit(main())
