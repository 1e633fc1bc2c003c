"""The graphs that the Agent Server serves: compiled without a checkpointer, which the server adds."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from typing_extensions import TypedDict

from langgraph_durable import Happened, NotHappened, current_effect, effect
from tests.vendor import Vendor

VENDOR = Vendor(int(os.environ["VENDOR_PORT"]))


async def look(record: Any) -> Happened | NotHappened:
    """Ask the vendor whether an earlier attempt took place."""
    done = await asyncio.to_thread(VENDOR.payments, record.args["order"])
    return Happened(done[0]["payment"]) if done else NotHappened()


async def send(order: str) -> str:
    """Make a payment at the vendor."""
    paid = await asyncio.to_thread(VENDOR.pay, order, 500, current_effect().idempotency_key)
    return str(paid["payment"])


@tool
@effect(verify=look, lease=timedelta(seconds=1))
async def pay(order: str) -> str:
    """Pay for an order; a lost answer is looked up."""
    return await send(order)


@tool
@effect(lease=timedelta(seconds=1), on_unknown="raise")
async def wire(order: str) -> str:
    """Pay for an order where nothing can be looked up."""
    return await send(order)


def model(state: MessagesState) -> dict[str, Any]:
    """Answer as a chat model would: `pay X` and `wire X` call a tool, `ask X` asks, anything else is repeated."""
    messages = state["messages"]
    verb, _, what = str(messages[-1].content).partition(" ")
    if messages[-1].type == "human" and verb in ("pay", "wire"):
        call = ToolCall(name=verb, args={"order": what}, id=f"call-{len(messages)}")
        return {"messages": [AIMessage("", tool_calls=[call])]}
    return {"messages": [AIMessage(f"{len(messages)}: {messages[-1].content}")]}


def route(state: MessagesState) -> str:
    """Choose the next node."""
    last = state["messages"][-1]
    if isinstance(last, AIMessage) and last.tool_calls:
        return "tools"
    return "ask" if ": ask " in str(last.content) else END


def ask(state: MessagesState) -> dict[str, Any]:
    """Ask a human."""
    return {"messages": [("user", f"answer {interrupt(state['messages'][-1].content)}")]}


_chat = StateGraph(MessagesState)
_chat.add_node("model", model)
_chat.add_node("tools", ToolNode([pay, wire], handle_tool_errors=False))
_chat.add_node("ask", ask)
_chat.add_edge(START, "model")
_chat.add_conditional_edges("model", route, ["tools", "ask", END])
_chat.add_edge("tools", "model")
_chat.add_edge("ask", "model")
chat = _chat.compile()


def append(state: list[str], writes: list[list[str]]) -> list[str]:
    """Reduce a delta channel."""
    return [*state, *(item for write in writes for item in write)]


class Trail(TypedDict):
    """A list that is stored as what was added to it."""

    trail: Annotated[list[str], DeltaChannel(append, snapshot_frequency=5)]


STEPS = 6
_trail = StateGraph(Trail)
for _number in range(STEPS):

    async def step(state: Trail, number: int = _number) -> dict[str, Any]:
        """Record the step; wait at the third one while a file says so."""
        place = Path(os.environ["STEPS_DIRECTORY"])
        first = state["trail"][-1] if number == 0 else ""
        await asyncio.to_thread(_record, place, f"{number} {first}")
        while number == 2 and await asyncio.to_thread((place / "hold").exists):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # until another process removes it
        return {"trail": [f"step {number}"]}

    _trail.add_node(f"s{_number}", step)
    _trail.add_edge(f"s{_number - 1}" if _number else START, f"s{_number}")
trail = _trail.compile()


def _record(place: Path, line: str) -> None:
    with (place / "steps").open("a") as file:
        file.write(line + "\n")
