"""Kill an agent between a payment and the provider's response, and resume it: `make demo`.

1. A naive agent, resumed by another process, pays twice.
2. An agent with @effect asks the provider whether the payment took place, and does not pay again.
3. It is also killed while it sends an e-mail. No provider can be asked about that, so it asks a human, who answers on
   the command line.
4. The thread's timeline shows what happened.

The chat model is scripted, because a real one needs an account. The processes, the kills, the HTTP provider that
records each request, and Postgres are real.
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
"""Time until the effect of a killed process may be recovered. The default is 30 seconds."""
CONFIG: RunnableConfig = {"configurable": {"thread_id": THREAD}}

# --- the provider: pays and sends at once, and responds a second later ---


class Provider(BaseHTTPRequestHandler):
    """Executes POST /payments/INVOICE and /emails/ADDRESS, without deduplication; GET lists the requests."""

    done: dict[str, list[str]] = {}  # noqa: RUF012 (shared by all requests on purpose)

    def do_POST(self) -> None:
        """Record the request, print it, and respond a second later, so that the client can be killed first."""
        self.done.setdefault(self.path, []).append(self.headers.get("Idempotency-Key", "none"))
        number = f"{self.path.split('/')[1]} no. {len(self.done[self.path])}"
        print(f"done: {self.path}", flush=True)
        time.sleep(1)
        self._respond(number)

    def do_GET(self) -> None:
        """Respond with the idempotency keys of the recorded requests."""
        self._respond(self.done.get(self.path, []))

    def _respond(self, content: Any) -> None:
        body = json.dumps(content).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the client was killed

    def log_message(self, format: str, *args: Any) -> None:
        """Print no log."""


def run_provider() -> None:
    """Print the port, and serve until stdin ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


def request(method: str, path: str, key: str = "") -> Any:
    """Send a request to the provider, and return its response."""
    connection = HTTPConnection("127.0.0.1", int(os.environ["DEMO_PROVIDER"]), timeout=30)
    try:
        connection.request(method, path, headers={"Idempotency-Key": key})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


# --- the agents ---


def find_payment(attempt: EffectRecord) -> Happened | NotHappened:
    """Ask the provider whether an earlier attempt took place."""
    keys = request("GET", f"/payments/{attempt.args['invoice']}")
    paid = attempt.idempotency_key in keys
    print(
        f"   [process {os.getpid()}] asks the provider whether the earlier attempt took place: {paid}",
        flush=True,
    )
    return Happened(f"payments no. {len(keys)}") if paid else NotHappened()


@tool
@effect(verify=find_payment, lease=LEASE)
def pay(invoice: str) -> str:
    """Pay an invoice."""
    response: str = request("POST", f"/payments/{invoice}", current_effect().idempotency_key)
    return response


@tool
@effect(on_unknown="ask", lease=LEASE)
def send_receipt(to: str) -> str:
    """Send a receipt by e-mail."""
    response: str = request("POST", f"/emails/{to}")
    return response


@tool("pay")
def pay_naively(invoice: str) -> str:
    """Pay an invoice."""
    response: str = request("POST", f"/payments/{invoice}")
    return response


def build(saver: Any, tools: list[BaseTool], *plan: tuple[str, dict[str, Any]]) -> Any:
    """Return an agent: a loop of a scripted model, which follows the plan, and a ToolNode."""

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
def open_agent(role: str, conninfo: str) -> Iterator[Any]:
    """Open a saver, and yield an agent with it: "naive" or "durable"."""
    if role == "naive":
        from langgraph.checkpoint.postgres import PostgresSaver  # may be missing

        with PostgresSaver.from_conn_string(
            make_conninfo(conninfo, options="-c search_path=demo_naive")
        ) as naive_saver:
            naive_saver.setup()
            yield build(naive_saver, [pay_naively], ("pay", {"invoice": "naive"}))
        return
    with DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        yield build(saver, [pay, send_receipt], ("pay", {"invoice": "7"}), ("send_receipt", {"to": "ann"}))


def run_agent(role: str, conninfo: str) -> None:
    """Start the thread's run, or resume it."""
    with open_agent(role, conninfo) as graph:
        started = graph.get_state(CONFIG).created_at is not None
        message = None if started else {"messages": [HumanMessage("Pay invoice 7 and send Ann a receipt")]}
        print(f"{'resumes' if started else 'starts'} the run", flush=True)
        result = graph.invoke(message, CONFIG, durability="sync")
        for waiting in result.get("__interrupt__", ()):
            print(f"waits for a human: {waiting.value['question']}", flush=True)
        if "__interrupt__" not in result:
            print(f"the agent says: {result['messages'][-1].content}", flush=True)


# --- the story ---


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start this program in another process."""
    command = [sys.executable, __file__, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 (this file)


def print_output(worker: subprocess.Popen[str]) -> None:
    """Print a process's output until it ends."""
    assert worker.stdout is not None  # noqa: S101 (`start` asked for a pipe)
    for line in worker.stdout:
        print(
            line.rstrip() if line.startswith(" ") else f"   [process {worker.pid}] {line.rstrip()}",
            flush=True,
        )
    worker.wait()


def kill_before_response(role: str, conninfo: str, provider: subprocess.Popen[str], path: str) -> None:
    """Run an agent, and kill it after the provider has executed a request, before the response."""
    assert provider.stdout is not None  # noqa: S101 (`start` asked for a pipe)
    worker = start(role, conninfo)
    printer = threading.Thread(target=print_output, args=(worker,))
    printer.start()
    while provider.stdout.readline().strip() != f"done: {path}":
        pass
    worker.send_signal(signal.SIGKILL)
    printer.join()
    print(
        f"   [provider] executed the request, and has not responded yet\n   [process {worker.pid}] killed with SIGKILL"
    )


def command_line(*arguments: str) -> str:
    """Run the package's command line, and return its output."""
    print(f"   $ python -m langgraph_durable {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "langgraph_durable", *arguments]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 (this package's own)
    print("".join(f"   {line}\n" for line in ended.stdout.rstrip().splitlines()), end="", flush=True)
    return ended.stdout


def tell_story(conninfo: str, provider: subprocess.Popen[str]) -> None:
    """Run the four parts of the demo."""
    title("1. A naive agent is killed before the provider responds, and another process resumes it")
    if find_spec("langgraph.checkpoint.postgres") is not None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS demo_naive CASCADE")
            connection.execute("CREATE SCHEMA demo_naive")
            kill_before_response("naive", conninfo, provider, "/payments/naive")
            print_output(start("naive", conninfo))
            connection.execute("DROP SCHEMA demo_naive CASCADE")
        print(f"   paid {len(request('GET', '/payments/naive'))} times")
    else:
        print("   (not shown: pip install langgraph-checkpoint-postgres)")

    title("2. With @effect: the same kill, but the provider is asked before another attempt")
    kill_before_response("durable", conninfo, provider, "/payments/7")
    kill_before_response("durable", conninfo, provider, "/emails/ann")
    print(f"   paid {len(request('GET', '/payments/7'))} time")

    title("3. That process was also killed while it sent an e-mail. No provider knows, so a human decides")
    print_output(start("durable", conninfo))
    with DurableSaver.from_conn_string(conninfo) as saver:
        [pending] = saver.effects.pending(THREAD)
    os.environ["DATABASE_URL"] = conninfo
    command_line("interrupts")
    note = "Ann received it"
    command_line(
        "effects", "resolve", pending.effect_id, "happened", "--result", '"emails no. 1"', "--note", note
    )
    print_output(start("durable", conninfo))
    print(f"   e-mails sent: {len(request('GET', '/emails/ann'))}")

    title("4. The timeline of the thread")
    command_line("timeline", THREAD)


def main() -> None:
    """Run the demo, or one of its processes."""
    if ROLE == "provider":
        run_provider()
        return
    if ROLE:
        run_agent(ROLE, sys.argv[2])
        return
    began = time.monotonic()
    print("starting Postgres ...", flush=True)
    with embedded.database() as conninfo:
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()
            saver.delete_thread(THREAD, force=True)  # in case the demo ran before
        provider = start("provider")
        assert provider.stdout is not None  # noqa: S101 (`start` asked for a pipe)
        os.environ["DEMO_PROVIDER"] = provider.stdout.readline().strip()
        try:
            tell_story(conninfo, provider)
        finally:
            provider.kill()
            provider.communicate()
    print(f"\ndone in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
