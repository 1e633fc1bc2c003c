"""Encrypt values and metadata with LangGraph's EncryptedSerializer."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver, embedded
from langgraph_durable.errors import CheckpointCorruptedError

SECRET = "the code is 4711"  # noqa: S105 (not a password)


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [("ai", "I will keep it to myself.")]}


def main() -> None:
    """Store a secret, search the database for it, and read it with the key and without."""
    config: RunnableConfig = {"configurable": {"thread_id": "encrypted"}}
    serde = EncryptedSerializer.from_pycryptodome_aes(key=os.urandom(16))  # store your key safely
    with embedded.database() as conninfo:
        with DurableSaver.from_conn_string(conninfo, serde=serde) as saver:
            saver.setup()
            saver.delete_thread("encrypted")
            builder = StateGraph(MessagesState)
            builder.add_node("reply", reply)
            builder.add_edge(START, "reply")
            graph: Any = builder.compile(checkpointer=saver)
            graph.invoke({"messages": [("user", SECRET)]}, config)
            print("with the key:", graph.get_state(config).values["messages"][0].content)
            print("steps, which stay readable for filters:", [c.metadata["step"] for c in saver.list(config)])

        with psycopg.connect(conninfo) as connection:
            rows = connection.execute(
                "SELECT value FROM langgraph_durable.writes WHERE thread_id = 'encrypted' "
                "UNION ALL SELECT data FROM langgraph_durable.channel_values WHERE thread_id = 'encrypted'"
            ).fetchall()
        print(
            f"in the database: {len(rows)} values, {sum(b'4711' in r[0] for r in rows)} of them with the secret"
        )

        with DurableSaver.from_conn_string(conninfo) as other:
            try:
                other.get_tuple(config)
            except CheckpointCorruptedError as exc:
                print("without the key:", type(exc).__name__)


if __name__ == "__main__":
    main()
