"""List the threads that wait for a human, and answer their questions."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, embedded


class Expense(TypedDict, total=False):
    """The state: an expense to approve."""

    what: str
    euros: int
    approved: bool


def approve(state: Expense) -> dict[str, Any]:
    """Ask for approval. The run ends here, and continues with the answer later, in any process."""
    return {"approved": interrupt({"question": f"Pay {state['euros']} EUR for {state['what']}?"})}


def config(thread_id: str) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def main() -> None:
    """Ask two questions, list them, and answer them."""
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        builder = StateGraph(Expense)
        builder.add_node("approve", approve)
        builder.add_edge(START, "approve")
        graph = builder.compile(checkpointer=saver)
        for what, euros in (("train", 80), ("yacht", 80_000)):
            saver.delete_thread(f"expense-{what}")
            graph.invoke({"what": what, "euros": euros}, config(f"expense-{what}"))

        for waiting in list(saver.pending_interrupts()):
            if not waiting.thread_id.startswith("expense-"):
                continue  # other threads on the same server
            seconds = waiting.age.total_seconds()
            print(f"{waiting.thread_id} waits for {seconds:.0f} s: {waiting.question['question']}")
            answer = waiting.thread_id == "expense-train"
            graph.invoke(Command(resume={waiting.interrupt_id: answer}), config(waiting.thread_id))
            print("  answered:", graph.get_state(config(waiting.thread_id)).values["approved"])
        print(f"still waiting: {len(list(saver.pending_interrupts(thread_id='expense-yacht')))}")
        print("timeline: " + ", ".join(e.phase for e in saver.timeline("expense-train")))


if __name__ == "__main__":
    main()
