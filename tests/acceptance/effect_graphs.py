"""Graphs whose tools are effects, and the outside world that these change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from langgraph_durable import DurableSaver, effect
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Graph

Body = Callable[[str], Any]


class World:
    """What really happened outside."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.trouble: list[BaseException] = []
        self._lock = threading.Lock()

    def __call__(self, what: str) -> str:
        """Do it; then raise the next of `trouble`, as if the answer were lost."""
        with self._lock:
            self.done.append(what)
            if self.trouble:
                raise self.trouble.pop()
        return f"did {what}"


def made(drive: Drive, body: Body, **options: Any) -> BaseTool:
    """Return a tool of one text, sync or async, whose body is an effect."""
    if drive.asynchronous:

        @tool(body.__name__)
        @effect(name=body.__name__, **options)
        async def aact(text: str) -> Any:
            """Do it."""
            return body(text)

        return aact

    @tool(body.__name__)
    @effect(name=body.__name__, **options)
    def act(text: str) -> Any:
        """Do it."""
        return body(text)

    return act


def remind(world: World) -> Body:
    def remind(text: str) -> Any:
        return world(text)

    return remind


def calls(*wanted: tuple[str, str, str]) -> AIMessage:
    """Return a message that calls tools: name, text and id of each call."""
    return AIMessage("", tool_calls=[ToolCall(name=n, args={"text": t}, id=i) for n, t, i in wanted])


def agent(
    saver: Any,
    tools: Sequence[BaseTool],
    *script: AIMessage,
    apart: bool = False,
    errors: Any = False,
    node: dict[str, Any] | None = None,
) -> Graph:
    """Return a graph of a scripted model and its tools; `apart`: each call in a separate task."""

    def model(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(m, AIMessage) for m in state["messages"])
        message = script[said] if said < len(script) else AIMessage("done")
        return {"messages": [message.model_copy(update={"id": None})]}

    def route(state: MessagesState) -> Any:
        last = state["messages"][-1]
        asked = last.tool_calls if isinstance(last, AIMessage) else []
        if not apart or not asked:
            return tools_condition(state)  # type: ignore[arg-type]
        alone = [last.model_copy(update={"tool_calls": [call]}) for call in asked]
        return [Send("tools", {"messages": [*state["messages"][:-1], message]}) for message in alone]

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(tools, handle_tool_errors=errors), **(node or {}))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


GIVEN = {"messages": [HumanMessage("go")]}


def told(result: dict[str, Any]) -> list[Any]:
    """Return what the tools answered."""
    return [m.content for m in result["messages"] if isinstance(m, ToolMessage)]


def states(saver: DurableSaver) -> list[str]:
    return [record.state for record in saver.effects.list()]


def answer(graph_interrupt: Any, decision: str, **more: Any) -> dict[str, Any]:
    return {"effect": graph_interrupt.value["effect"], "decision": decision, **more}


async def before_tools(drive: Drive, graph: Graph) -> Any:
    """Return the config of the checkpoint from which the tools first ran."""
    return [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1].config


def requesting_twice(saver: DurableSaver, drive: Drive, body: Body, **options: Any) -> Graph:
    """Return a graph whose model asks for the same again, under another id, after an error."""
    script = (calls(("remind", "a", "1")), calls(("remind", "a", "2")))
    return agent(saver, [made(drive, body, **options)], *script, errors=True)
