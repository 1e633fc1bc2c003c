"""An agent is killed in the middle of a run, and another process finishes it: `make demo`.

The agent plans a trip with three tool calls. Its worker process is killed with SIGKILL (no clean-up, no last words)
while the third tool is at work. A second process resumes from the checkpoint; what had finished does not run
again. Then the thread's history is walked, a past checkpoint is replayed, and another is forked.

The chat model is scripted, since a real one needs an account; the agent, its tools, the processes, the kill and
the Postgres are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_durable import DurableSaver, embedded

IS_WORKER = sys.argv[1:2] == ["--worker"]
CONFIG: RunnableConfig = {"configurable": {"thread_id": "trip-to-lisbon"}}

# --- the agent ---

SCRIPT: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    ("I will look for a flight.", [("find_flight", {"to": "Lisbon"})]),
    ("Now a hotel, close to the river.", [("find_hotel", {"city": "Lisbon"})]),
    ("Both look good, so I book them.", [("book", {"what": "TP 532, Hotel Tejo"})]),
    ("You fly with TP 532 and stay at Hotel Tejo. Have a good trip!", []),
]


class ScriptedModel(BaseChatModel):
    """Answers by the script: one line for each of its own messages so far."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        text, calls = SCRIPT[turn]
        tool_calls = [{"name": name, "args": args, "id": f"call-{turn}-{name}"} for name, args in calls]
        message = AIMessage(text, tool_calls=tool_calls, id=f"answer-{turn}")
        return ChatResult(generations=[ChatGeneration(message=message)])


def tell(what: str) -> None:
    """Write down what this process does, where the demo counts it, and say it."""
    with Path(os.environ["DEMO_JOURNAL"]).open("a") as journal:
        journal.write(f"{what}\n")
    print(what if IS_WORKER else f"   [this process] {what}", flush=True)


@tool
def find_flight(to: str) -> str:
    """Find a flight."""
    tell("tool find_flight")
    return f"TP 532 to {to}, 08:15"


@tool
def find_hotel(city: str) -> str:
    """Find a hotel."""
    tell("tool find_hotel")
    return f"Hotel Tejo, {city}"


@tool
def book(what: str) -> str:
    """Book something; takes a while."""
    tell("tool book: started")
    time.sleep(float(os.environ.get("DEMO_BOOKING_SECONDS", "0.2")))
    tell("tool book: done")
    return f"booked: {what}"


def build(saver: DurableSaver) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return the agent: a model node and a ToolNode, in a loop."""

    def model(state: MessagesState) -> dict[str, Any]:
        tell(f"model, turn {sum(isinstance(m, AIMessage) for m in state['messages']) + 1}")
        return {"messages": [ScriptedModel().invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([find_flight, find_hotel, book]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def work(conninfo: str) -> None:
    """Run the agent in this process: from the start, or from wherever its thread is."""
    with DurableSaver.from_conn_string(conninfo) as saver:
        graph = build(saver)
        begun = graph.get_state(CONFIG).created_at is not None
        question = {"messages": [HumanMessage("Plan my trip to Lisbon", id="question")]}
        graph.invoke(None if begun else question, CONFIG, durability="sync")


# --- the story ---


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def start_worker(conninfo: str, booking_seconds: float) -> subprocess.Popen[str]:
    """Start a process that runs `work`."""
    command = [sys.executable, __file__, "--worker", conninfo]
    environment = os.environ | {"DEMO_BOOKING_SECONDS": str(booking_seconds)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603


def follow(worker: subprocess.Popen[str], kill_at: str | None = None) -> None:
    """Print what a worker says, until it ends, or kill it when it says something."""
    assert worker.stdout is not None  # noqa: S101
    for line in worker.stdout:
        print(f"   [process {worker.pid}] {line.rstrip()}")
        if line.strip() == kill_at:
            worker.send_signal(signal.SIGKILL)
            print(f"   [process {worker.pid}] killed with SIGKILL")
    if worker.wait() != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"the worker ended with status {worker.returncode}")


def tell_story(conninfo: str) -> None:
    """Run, kill, resume, look back, replay, fork."""
    with DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("trip-to-lisbon")  # of an earlier demo on the same server
        graph = build(saver)

        title("1. A process runs the agent, and is killed while the third tool is at work")
        follow(start_worker(conninfo, booking_seconds=60), kill_at="tool book: started")
        state = graph.get_state(CONFIG)
        print(f"   left in Postgres: {len(state.values['messages'])} messages, next node {state.next}")

        title("2. Another process resumes it")
        follow(start_worker(conninfo, booking_seconds=0.2))
        print(f"   answer: {graph.get_state(CONFIG).values['messages'][-1].content}")

        title("3. What ran how often (only the killed tool was started twice)")
        for what, times in Counter(Path(os.environ["DEMO_JOURNAL"]).read_text().splitlines()).items():
            print(f"   {times} x {what}")

        title("4. The history of the thread, newest first")
        history = list(graph.get_state_history(CONFIG))
        for snapshot in history:
            metadata = snapshot.metadata or {}
            print(
                f"   {saver.get_ulid(snapshot.config)}  step {metadata.get('step'):>2}  "
                f"{len(snapshot.values.get('messages', [])):>2} messages  next: {', '.join(snapshot.next) or '-'}"
            )

        title("5. Replay from the checkpoint before the last answer")
        before_answer = next(s for s in history if s.next == ("model",))
        replayed = graph.invoke(None, before_answer.config)
        print(f"   the same answer again: {replayed['messages'][-1].content}")

        title("6. Fork: the past with another hotel")
        after_hotel = next(s for s in history if len(s.values.get("messages", [])) == 5)
        hotel = after_hotel.values["messages"][-1].model_copy(update={"content": "Pensao Alfama, Lisbon"})
        fork = graph.update_state(after_hotel.config, {"messages": [hotel]}, as_node="tools")
        forked = graph.invoke(None, fork)
        print(f"   in the fork the tool said: {forked['messages'][4].content}")
        original = graph.get_state(history[0].config).values["messages"][4].content
        print(f"   in the original it still says: {original}")
        print(f"   checkpoints in the thread now: {sum(1 for _ in saver.list(CONFIG))}")


def main() -> None:
    """Tell the story, or be one of its workers."""
    if IS_WORKER:
        work(sys.argv[2])
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["DEMO_JOURNAL"] = str(Path(directory, "journal"))
        os.environ["DEMO_BOOKING_SECONDS"] = "0.2"
        print("starting Postgres ...", flush=True)
        with embedded.database() as conninfo:
            tell_story(conninfo)
    print(f"\ndone in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
