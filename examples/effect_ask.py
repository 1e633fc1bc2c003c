"""Ask a human whether an e-mail was sent, because no provider can be asked."""

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
    """The state: the address, and what the tool returned."""

    to: str
    result: str


@effect(on_unknown="ask")
def send(to: str) -> str:
    """Send an e-mail. The first time, the connection breaks after the mail is sent."""
    SENT.append(to)
    if LOST:
        raise LOST.pop()
    return f"sent to {to}"


def mail(state: Mail) -> dict[str, Any]:
    """Call the tool from a node."""
    return {"result": send(state["to"])}


def main() -> None:
    """Send a mail, lose the response, run again, and answer the question."""
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

        graph.invoke(None, config)  # interrupts with a question instead of sending again
        [waiting] = saver.pending_interrupts(thread_id="effect-ask")
        print(f"a human gets the question: {waiting.question['question']} {waiting.question['args']}")
        decision = {"effect": waiting.effect_id, "decision": "happened", "result": "sent, says the outbox"}
        result = graph.invoke(Command(resume={waiting.interrupt_id: decision}), config)
        print("the graph continued with:", result["result"])
        print("mails sent:", len(SENT))
        for event in saver.effects.history(waiting.effect_id or ""):
            print(f"   {event.from_state or '(new)'} -> {event.to_state}, by {event.actor}")


if __name__ == "__main__":
    main()
