"""Repeat a request whose response was lost, because the provider deduplicates by idempotency key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, current_effect, effect, embedded

PAYMENTS: dict[str, str] = {}
"""Stands in for the payment provider: idempotency key -> receipt."""
LOST = [TimeoutError("the provider's response was lost")]


class Order(TypedDict, total=False):
    """The state: an invoice, and the receipt of its payment."""

    invoice: str
    receipt: str


# The provider forgets keys after a day. A later retry could pay twice, so a human is asked instead.
@effect(on_unknown="retry", idempotency_window=timedelta(hours=24))
def pay(invoice: str) -> str:
    """Pay an invoice. The provider returns the first receipt for a repeated key."""
    running = current_effect()
    print(f"   attempt {running.attempts} of {invoice}")
    receipt = PAYMENTS.setdefault(running.idempotency_key, f"receipt {len(PAYMENTS) + 1} for {invoice}")
    if LOST:
        raise LOST.pop()  # paid, but no response arrives
    return receipt


def call_tool(state: Order) -> dict[str, Any]:
    """Call the tool from a node."""
    return {"receipt": pay(state["invoice"])}


def main() -> None:
    """Pay, lose the response, and run again."""
    config: RunnableConfig = {"configurable": {"thread_id": "effect-retry"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("effect-retry", force=True)
        builder = StateGraph(Order)
        builder.add_node("pay", call_tool)
        builder.add_edge(START, "pay")
        graph = builder.compile(checkpointer=saver)
        try:
            graph.invoke({"invoice": "INV-7"}, config)
        except TimeoutError as exc:
            print("the run failed:", exc)
        print("run again:", graph.invoke(None, config)["receipt"])
        print("payments:", len(PAYMENTS))


if __name__ == "__main__":
    main()
