"""An e-mail that may have been sent: nobody can be asked but a human, so one is, and decides."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect, embedded

SENT: list[str] = []
LOST = [ConnectionResetError("the connection broke")]


class Mail(TypedDict, total=False):
    """What is to be sent, and what came of it."""

    to: str
    result: str


@effect(on_unknown="ask")
def send(to: str) -> str:
    """Send an e-mail, over a connection that breaks once it is sent."""
    SENT.append(to)
    if LOST:
        raise LOST.pop()
    return f"sent to {to}"


def mail(state: Mail) -> dict[str, Any]:
    """Send it from a node."""
    return {"result": send(state["to"])}


def main() -> None:
    """Send, lose the answer, ask, decide."""
    config: RunnableConfig = {"configurable": {"thread_id": "effect-ask"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("effect-ask", force=True)
        builder = StateGraph(Mail)
        builder.add_node("mail", mail)
        builder.add_edge(START, "mail")
        graph = builder.compile(checkpointer=saver)
        try:
            graph.invoke({"to": "ann@example.org"}, config)
        except ConnectionResetError as exc:
            print("the run failed:", exc)

        graph.invoke(None, config)  # does not send again: it asks
        [waiting] = saver.pending_interrupts(thread_id="effect-ask")
        print(f"a human is asked: {waiting.question['question']} {waiting.question['args']}")
        decision = {"effect": waiting.effect_id, "decision": "happened", "result": "sent, says the outbox"}
        result = graph.invoke(Command(resume={waiting.interrupt_id: decision}), config)
        print("the graph went on with:", result["result"])
        print("mails that were sent:", len(SENT))
        for event in saver.effects.history(waiting.effect_id or ""):
            print(f"   {event.from_state or 'nothing'} -> {event.to_state}, by {event.actor}")


if __name__ == "__main__":
    main()
