"""A graph behind FastAPI: the saver opens and closes with the application.

    pip install fastapi uvicorn langgraph 'langgraph-durable[embedded]'
    uvicorn fastapi_app:app

Run as a script, it sends itself two requests, each to a new application, as after a restart.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from langgraph_durable import DurableSaver, embedded


async def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [AIMessage(f"That is message {len(state['messages'])}.")]}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one saver for the application, and compile the graph with it."""
    async with DurableSaver.from_conn_string(os.environ["DATABASE_URL"], max_size=8) as saver:
        await saver.asetup()
        builder = StateGraph(MessagesState)
        builder.add_node("reply", reply)
        builder.add_edge(START, "reply")
        app.state.graph = builder.compile(checkpointer=saver)
        yield


app = FastAPI(lifespan=lifespan)


class Message(BaseModel):
    """The body of a request."""

    text: str


@app.post("/threads/{thread_id}")  # type: ignore[untyped-decorator, unused-ignore]
async def talk(thread_id: str, message: Message) -> dict[str, str]:
    """Continue a thread with a message."""
    config = {"configurable": {"thread_id": thread_id}}
    state = await app.state.graph.ainvoke({"messages": [("user", message.text)]}, config)
    return {"reply": str(state["messages"][-1].content)}


def main() -> None:
    """Send two messages to one thread."""
    with embedded.database() as conninfo:
        os.environ["DATABASE_URL"] = conninfo
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()
            saver.delete_thread("fastapi")
        for text in ("Hello", "Still there?"):
            with TestClient(app) as client:
                print(client.post("/threads/fastapi", json={"text": text}).json()["reply"])


if __name__ == "__main__":
    main()
