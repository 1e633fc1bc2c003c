"""Ask the payment provider about a lost response before paying again."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_durable import DurableSaver, Happened, NotHappened, current_effect, effect, embedded
from langgraph_durable.effects import EffectRecord

PAYMENTS: dict[str, str] = {}
"""Stands in for the payment provider: idempotency key -> receipt."""
LOST = [TimeoutError("the provider's response was lost")]


def find_charge(attempt: EffectRecord) -> Happened | NotHappened:
    """Ask the provider whether an earlier attempt took place."""
    receipt = PAYMENTS.get(attempt.idempotency_key)
    return Happened(receipt) if receipt else NotHappened()


@tool
@effect(verify=find_charge)
def charge(invoice: str, cents: int) -> str:
    """Charge the customer's card."""
    print("   charging the card")
    PAYMENTS[current_effect().idempotency_key] = f"{invoice}: {cents} cents"
    if LOST:
        raise LOST.pop()  # the card is charged, but no response arrives
    return PAYMENTS[current_effect().idempotency_key]


def model(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model that calls the tool."""
    call = ToolCall(name="charge", args={"invoice": "INV-7", "cents": 4200}, id="call-1")
    return {"messages": [AIMessage("", tool_calls=[call])]}


def main() -> None:
    """Pay, lose the response, and run again."""
    config: RunnableConfig = {"configurable": {"thread_id": "effect-verify"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("effect-verify", force=True)
        builder = StateGraph(MessagesState)
        builder.add_node("model", model)
        builder.add_node("tools", ToolNode([charge], handle_tool_errors=False))
        builder.add_edge(START, "model")
        builder.add_edge("model", "tools")
        builder.add_edge("tools", END)
        graph: Any = builder.compile(checkpointer=saver)
        try:
            graph.invoke({"messages": [("user", "pay invoice 7")]}, config)
        except TimeoutError as exc:
            print("the run failed:", exc)
        print("run again, the tool returned:", graph.invoke(None, config)["messages"][-1].content)
        print("charges at the provider:", len(PAYMENTS))
        *_, paid = saver.effects.list(thread_id="effect-verify", state="completed")
        for event in saver.effects.history(paid.effect_id):
            print(f"   {event.from_state or '(new)'} -> {event.to_state}")


if __name__ == "__main__":
    main()
