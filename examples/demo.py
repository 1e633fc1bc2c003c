"""An agent pays an invoice, and is killed between the vendor's commit and the vendor's answer: `make demo`.

A naive agent, resumed by another process, pays again. This one asks the vendor what became of the payment, and does
not. Then it sends a receipt by e-mail and is killed in the same way; nobody can be asked what became of an e-mail, so
a human is, who answers on the command line. In the end the thread tells what happened, step by step.

The chat model is scripted, since a real one needs an account. The agents, the processes, the kills, the HTTP vendor
that counts what it did, and the Postgres are real.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import psycopg
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from psycopg.conninfo import make_conninfo

from langgraph_durable import DurableSaver, Happened, NotHappened, current_effect, effect, embedded
from langgraph_durable.effects import EffectRecord

ROLE = sys.argv[1] if len(sys.argv) > 1 else ""
THREAD = "invoice-7"
LEASE = timedelta(seconds=2)
"""After which a process that gives no sign is taken for dead; by default 30 seconds."""
CONFIG: RunnableConfig = {"configurable": {"thread_id": THREAD}}

# --- the outside world: pays and sends at once, and takes its time to say so ---


class Vendor(BaseHTTPRequestHandler):
    """POST /payments/ORDER and /emails/ADDRESS do it; GET tells what was done. Idempotency keys are ignored."""

    done: dict[str, list[str]] = {}  # noqa: RUF012 (of all requests, on purpose)

    def do_POST(self) -> None:
        """Do it, say so on stdout, and answer a second later: time to kill whoever asked."""
        self.done.setdefault(self.path, []).append(self.headers.get("Idempotency-Key", "none"))
        number = f"{self.path.split('/')[1]} no. {len(self.done[self.path])}"
        print(f"done: {self.path}", flush=True)
        time.sleep(1)
        self._answer(number)

    def do_GET(self) -> None:
        """Tell the keys of what was done."""
        self._answer(self.done.get(self.path, []))

    def _answer(self, what: Any) -> None:
        body = json.dumps(what).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # whoever asked is dead

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def be_vendor() -> None:
    """Serve until stdin ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


def ask_vendor(method: str, path: str, key: str = "") -> Any:
    """Make a request of the vendor's."""
    connection = HTTPConnection("127.0.0.1", int(os.environ["DEMO_VENDOR"]), timeout=30)
    try:
        connection.request(method, path, headers={"Idempotency-Key": key})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


# --- the agents ---


def find_payment(attempt: EffectRecord) -> Happened | NotHappened:
    """Ask the vendor what became of an attempt whose answer never came."""
    keys = ask_vendor("GET", f"/payments/{attempt.args['invoice']}")
    print(
        f"   [process {os.getpid()}] asks the vendor: did the attempt before take place? {bool(keys)}",
        flush=True,
    )
    return Happened(f"payments no. {len(keys)}") if attempt.idempotency_key in keys else NotHappened()


@tool
@effect(verify=find_payment, lease=LEASE)
def pay(invoice: str) -> str:
    """Pay an invoice."""
    answer: str = ask_vendor("POST", f"/payments/{invoice}", current_effect().idempotency_key)
    return answer


@tool
@effect(on_unknown="ask", lease=LEASE)
def send_receipt(to: str) -> str:
    """Send a receipt by e-mail."""
    answer: str = ask_vendor("POST", f"/emails/{to}")
    return answer


@tool("pay")
def pay_naively(invoice: str) -> str:
    """Pay an invoice."""
    answer: str = ask_vendor("POST", f"/payments/{invoice}")
    return answer


def build(saver: Any, tools: list[BaseTool], *plan: tuple[str, dict[str, Any]]) -> Any:
    """Return an agent: a model, here one that follows a plan, and a ToolNode, in a loop."""

    def model(state: MessagesState) -> dict[str, Any]:
        turn = sum(isinstance(message, ToolMessage) for message in state["messages"])
        if turn == len(plan):
            return {"messages": [AIMessage("All done.")]}
        name, args = plan[turn]
        return {"messages": [AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call_{turn}"}])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(tools, handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


@contextmanager
def opened(role: str, conninfo: str) -> Iterator[Any]:
    """Open the saver, and make the agent, of one of the two kinds."""
    if role == "naive":
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(
            make_conninfo(conninfo, options="-c search_path=demo_naive")
        ) as theirs:
            theirs.setup()
            yield build(theirs, [pay_naively], ("pay", {"invoice": "naive"}))
        return
    with DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        yield build(saver, [pay, send_receipt], ("pay", {"invoice": "7"}), ("send_receipt", {"to": "ann"}))


def be_worker(role: str, conninfo: str) -> None:
    """Run an agent: from the start, or from wherever its thread is."""
    with opened(role, conninfo) as graph:
        begun = graph.get_state(CONFIG).created_at is not None
        given = None if begun else {"messages": [HumanMessage("Pay invoice 7 and send Ann a receipt")]}
        print(f"{'goes on with' if begun else 'starts'} the run", flush=True)
        result = graph.invoke(given, CONFIG, durability="sync")
        for asked in result.get("__interrupt__", ()):
            print(f"waits for a human: {asked.value['question']}", flush=True)
        if "__interrupt__" not in result:
            print(f"the agent says: {result['messages'][-1].content}", flush=True)


# --- the story ---


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a process of this very program."""
    command = [sys.executable, __file__, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 (this file)


def follow(worker: subprocess.Popen[str]) -> None:
    """Print what a worker says, until it ends."""
    assert worker.stdout is not None  # noqa: S101 (`start` asked for a pipe)
    for line in worker.stdout:
        print(
            line.rstrip() if line.startswith(" ") else f"   [process {worker.pid}] {line.rstrip()}",
            flush=True,
        )
    worker.wait()


def kill_when_done(role: str, conninfo: str, vendor: subprocess.Popen[str], path: str) -> None:
    """Run an agent, and kill it when the vendor has done what it asks for, and has not answered yet."""
    assert vendor.stdout is not None  # noqa: S101 (`start` asked for a pipe)
    worker = start(role, conninfo)
    follower = threading.Thread(target=follow, args=(worker,))
    follower.start()
    while vendor.stdout.readline().strip() != f"done: {path}":
        pass
    worker.send_signal(signal.SIGKILL)
    follower.join()
    print(f"   [the vendor] did it, and has not answered yet\n   [process {worker.pid}] killed with SIGKILL")


def command_line(*arguments: str) -> str:
    """Run the package's command line as a person would; return what it prints."""
    print(f"   $ python -m langgraph_durable {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "langgraph_durable", *arguments]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 (this package's own)
    print("".join(f"   {line}\n" for line in ended.stdout.rstrip().splitlines()), end="", flush=True)
    return ended.stdout


def tell_story(conninfo: str, vendor: subprocess.Popen[str]) -> None:
    """Pay naively, pay once, ask a human, look back."""
    title("1. A naive agent pays, and is killed before the vendor answers; another process goes on")
    if find_spec("langgraph.checkpoint.postgres") is not None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS demo_naive CASCADE")
            connection.execute("CREATE SCHEMA demo_naive")
            kill_when_done("naive", conninfo, vendor, "/payments/naive")
            follow(start("naive", conninfo))
            connection.execute("DROP SCHEMA demo_naive CASCADE")
        print(f"   paid {len(ask_vendor('GET', '/payments/naive'))} times")
    else:
        print("   (not shown: pip install langgraph-checkpoint-postgres)")

    title("2. Ours: the same kill, and the vendor is asked before anything is tried again")
    kill_when_done("ours", conninfo, vendor, "/payments/7")
    kill_when_done("ours", conninfo, vendor, "/emails/ann")
    print(f"   paid {len(ask_vendor('GET', '/payments/7'))} time")

    title(
        "3. That process was killed as it sent an e-mail. Nobody can be asked whether it went out: a human decides"
    )
    follow(start("ours", conninfo))
    with DurableSaver.from_conn_string(conninfo) as saver:
        [pending] = saver.effects.pending(THREAD)
    os.environ["DATABASE_URL"] = conninfo
    command_line("interrupts")
    note = "Ann has it"
    command_line(
        "effects", "resolve", pending.effect_id, "happened", "--result", '"emails no. 1"', "--note", note
    )
    follow(start("ours", conninfo))
    print(f"   e-mails sent: {len(ask_vendor('GET', '/emails/ann'))}")

    title("4. What happened in this thread")
    command_line("timeline", THREAD)


def main() -> None:
    """Tell the story, or be one of its processes."""
    if ROLE == "vendor":
        be_vendor()
        return
    if ROLE:
        be_worker(ROLE, sys.argv[2])
        return
    began = time.monotonic()
    print("starting Postgres ...", flush=True)
    with embedded.database() as conninfo:
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()
            saver.delete_thread(THREAD, force=True)  # of an earlier demo on the same server
        vendor = start("vendor")
        assert vendor.stdout is not None  # noqa: S101 (`start` asked for a pipe)
        os.environ["DEMO_VENDOR"] = vendor.stdout.readline().strip()
        try:
            tell_story(conninfo, vendor)
        finally:
            vendor.kill()
            vendor.communicate()
    print(f"\ndone in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
