"""Prune, copy and delete threads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver, embedded


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [("ai", "noted " * 50)]}


def main() -> None:
    """Fill a thread, prune it, copy it, delete the copy."""
    long: RunnableConfig = {"configurable": {"thread_id": "retention"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        for name in ("retention", "retention-copy"):
            saver.delete_thread(name)
        builder = StateGraph(MessagesState)
        builder.add_node("reply", reply)
        builder.add_edge(START, "reply")
        graph: Any = builder.compile(checkpointer=saver)
        for turn in range(10):
            graph.invoke({"messages": [("user", f"turn {turn}")]}, long)

        plan = saver.prune(["retention"], keep_last=2, dry_run=True)
        print(f"a prune would remove {plan.total.total_bytes} bytes")
        report = saver.prune(["retention"], keep_last=2)
        print(f"it removed {report.total.rows['checkpoints']} checkpoints")
        print(f"messages left: {len(graph.get_state(long).values['messages'])}")

        saver.copy_thread("retention", "retention-copy")
        receipt = saver.delete_thread("retention-copy")
        print(f"deleted {receipt.thread_id}: {receipt.removed.total_rows} rows, receipt {receipt.ulid}")

        # All threads, one small transaction each. A dry run, because the server may hold other threads.
        everything = saver.prune_all(older_than=timedelta(days=90), dry_run=True)
        print(
            f"prune_all would remove {everything.removed.total_rows} rows of {everything.threads_seen} threads"
        )


if __name__ == "__main__":
    main()
