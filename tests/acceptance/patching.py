"""Middleware that answers dangling tool calls without knowing what became of them, as deepagents' does."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite

agents = pytest.importorskip("langchain.agents.middleware", reason="langchain is not installed")


def patched(messages: list[Any]) -> list[Any]:
    """Return the messages with an answer to each call that has none after it."""
    found = []
    for number, message in enumerate(messages):
        found.append(message)
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            later = messages[number:]
            if not any(isinstance(m, ToolMessage) and m.tool_call_id == call["id"] for m in later):
                text = (
                    f"Tool call {call['name']} with id {call['id']} was cancelled - another message came in before it "
                    "could be completed."
                )
                found.append(ToolMessage(text, name=call["name"], tool_call_id=call["id"]))
    return found


def patching(*, before_model: bool) -> Any:
    """Return the middleware: before the agent, by Overwrite, or before the model, by removing all messages."""
    if before_model:

        class PatchBeforeModel(agents.AgentMiddleware):  # type: ignore[misc, name-defined]
            def before_model(self, state: Any, runtime: Any) -> Any:
                return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *patched(state["messages"])]}

        return PatchBeforeModel()

    class PatchBeforeAgent(agents.AgentMiddleware):  # type: ignore[misc, name-defined]
        def before_agent(self, state: Any, runtime: Any) -> Any:
            return {"messages": Overwrite(patched(state["messages"]))}

    return PatchBeforeAgent()
