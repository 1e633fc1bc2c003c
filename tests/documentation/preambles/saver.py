"""A saver on an empty database, set up."""

import os

from langgraph_durable import DurableSaver

saver = DurableSaver.from_conn_string(os.environ["DATABASE_URL"])
saver.setup()
