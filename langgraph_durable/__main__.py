"""`python -m langgraph_durable`."""

import io
import sys

from langgraph_durable.cli.main import main

if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal's encoding may lack what somebody stored
sys.exit(main())
