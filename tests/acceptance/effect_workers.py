"""Worker processes with a graph that pays: each runs it once, and dies or is suspended at a named point.

They are forked from a server that has imported everything, because hundreds are started.
"""

from __future__ import annotations

import asyncio
import datetime
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send

from langgraph_durable import (
    READ_ONLY,
    DurableSaver,
    EffectPolicy,
    Happened,
    NotHappened,
    current_effect,
    effect,
)
from langgraph_durable.effects._storage.rows import ClaimKind
from langgraph_durable.errors import DurableError, EffectError
from langgraph_durable.testing.operations import Event, watch
from tests.acceptance.driving import thread
from tests.acceptance.graphs import Graph
from tests.vendor import Vendor

CENTS = 500

Kind = Literal["tool", "node", "raw", "wrapped", "send", "agent", "subgraph", "stateful subgraph", "task"]
IN_SUBGRAPHS = ("subgraph", "stateful subgraph")
PUSHED = ("send", "agent", "task")
"""Kinds whose tools run in tasks that are created by Send."""
WITHOUT_TOOLS = ("node", "raw", "task")
OnPoint = Literal["die", "stand still"]

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Request:
    """The work of one worker."""

    order: str
    """The order to pay; also the thread's id."""
    conninfo: str
    vendor: Vendor
    kind: Kind = "tool"
    asynchronous: bool = False
    durability: str = "sync"
    named: bool = False
    """Whether the effect's key is the order, instead of being derived from the call."""
    scope: Literal["call", "thread"] = "call"
    verify: bool = True
    flaky: bool = False
    """Whether the first call of verify fails."""
    on_unknown: Literal["ask", "raise", "retry"] = "raise"
    idempotency_window: float | None = None
    failed_on: tuple[type[Exception], ...] = ()
    settle: float = 0.0
    lease: float = 0.5
    wait: float = 30.0
    retry: bool = False
    """Whether the node has a retry policy."""
    input: bool = True
    """Whether to run with the input, or to continue."""
    answer: dict[str, Any] | None = None
    """A human's answer to the graph's question."""
    point: str | None = None
    on_point: OnPoint = "die"
    max_size: int = 4
    clock: float = 0.0
    """Seconds by which the worker's clock is off."""


_KILLED = (-signal.SIGKILL, 255)
"""Exit codes of a killed process; the latter if the server that forked it does not know."""


class Worker:
    """A worker process and its messages."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._pipe, its = context.Pipe()
        self.process = context.Process(target=target, args=(*args, its), daemon=True)
        self.process.start()
        its.close()

    def hear(self, timeout: float = 60) -> Any:
        """Return the worker's next message; None if it died."""
        assert self._pipe.poll(timeout), "the worker says nothing"
        try:
            return self._pipe.recv()
        except EOFError:
            return None

    def say(self, what: Any = None) -> None:
        self._pipe.send(what)

    def finish(self) -> Any:
        """Return its last message."""
        said = last = self.hear()
        while said is not None:
            last, said = said, self.hear()
        self.join()
        return last

    def die(self) -> None:
        """Wait until it has killed itself."""
        while self.hear() is not None:
            pass
        assert self._exitcode() in _KILLED, self.process.exitcode

    def die_or_finish(self) -> Any:
        """Return its last message, or None if it killed itself."""
        last = self.finish()
        return None if self._exitcode() in _KILLED else last

    def _exitcode(self) -> int | None:
        self.join()
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.join()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def join(self) -> None:
        self.process.join(60)
        self._pipe.close()


@contextmanager
def started(target: Callable[..., None], *args: Any) -> Iterator[Worker]:
    """Start a worker, and kill it at the end of the block."""
    worker = Worker(target, *args)
    try:
        yield worker
    finally:
        worker.kill()


def run(request: Request, pipe: Connection) -> None:
    """Run the graph, and send how it ended."""
    if request.clock:
        set_clock(request.clock)
    points = _Points(request, pipe)
    points.watch()
    with DurableSaver.from_conn_string(request.conninfo, max_size=request.max_size) as saver:
        graph = build(request, saver, points)
        given: Any = {"messages": [("user", request.order)]} if request.input else None
        if request.answer is not None:
            given = Command(resume=request.answer)
        options: dict[str, Any] = {"durability": request.durability}
        try:
            if request.asynchronous:
                result = asyncio.run(graph.ainvoke(given, thread(request.order), **options))
            else:
                result = graph.invoke(given, thread(request.order), **options)
        except (DurableError, RuntimeError) as exc:
            pipe.send((type(exc).__name__, str(exc)))
            return
        questions = result.get("__interrupt__")
        if questions:
            pipe.send(("asked", questions[0].value))
        elif request.kind not in WITHOUT_TOOLS and (problem := problem_of(result["messages"])):
            pipe.send(("wrong messages", problem))
        else:
            pipe.send(("finished", " ".join(str(message.content) for message in result["messages"])))


def problem_of(messages: Sequence[Any]) -> str | None:
    """Return what is wrong with a conversation for a model; None if nothing is."""
    ids = [message.id for message in messages]
    if None in ids or len(set(ids)) != len(ids):
        return f"ids {ids}"
    inputs = [message for message in messages if isinstance(message, HumanMessage)]
    asked: list[Any] = []
    answered: list[Any] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            answered.append(message.tool_call_id)
            continue
        # LangGraph drops the step of a turn that died when the same input comes again.
        if asked != answered and (answered or len(inputs) == 1):
            return f"calls {asked}, answers {answered}"
        answered = []
        asked = [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return None if asked == answered else f"calls {asked}, answers {answered}"


def set_clock(seconds: float) -> None:
    """Shift the wall clock that Python code of this process reads."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime_class.now(tz) + datetime.timedelta(seconds=seconds)

    datetime_class = datetime.datetime
    datetime.datetime = Shifted  # type: ignore[misc]


def race(conninfo: str, vendor: Vendor, rounds: Sequence[str], barrier: Any, pipe: Connection) -> None:
    """Pay the same orders as other workers at the same time, and send each order's payment."""
    seen: list[str] = []
    with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        log = saver.effects
        saver.get_tuple(thread())  # connected before the first round
        for order in rounds:
            barrier.wait(60)
            with log.effect("pay", key=order) as e:
                if not e.replayed:
                    e.issue()
                    e.complete(vendor.pay(order, CENTS, e.idempotency_key))
                seen.append(e.result["payment"])
    pipe.send(seen)


# The checkpoint from which the tools run, and the one that has their result; with durability "exit", the last one.
_USUAL_STEPS = {1: "asking put", 2: "result put", 3: "result put"}
_STEPS = {
    # Dangling calls are answered before the model; what a human approves comes between it and the tools.
    "agent": {3: "asking put", 4: "result put", 5: "result put", 6: "result put", 7: "result put"},
    # A function's tasks run within its one step.
    "task": {-1: "asking put", 0: "result put"},
}


class _Points:
    """The points at which a worker can die."""

    def __init__(self, request: Request, pipe: Connection) -> None:
        self._kind = request.kind
        self._point = request.point
        self._on_point = request.on_point
        self._pipe = pipe
        self._said_waiting = False

    def __call__(self, point: str) -> None:
        if point != self._point:
            return
        self._point = None
        if self._on_point == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self._pipe.send(("reached", point))
        self._pipe.recv()

    def say(self, *what: Any) -> None:
        self._pipe.send(what)

    def watch(self) -> None:
        """Observe the operations of the log and the saver as points."""
        watch(self._observe)

    def _observe(self, event: Event) -> None:
        if (point := self._point_of(event)) is not None:
            self(f"{'after' if event.ended else 'before'} {point}")
        if event.operation == "claim" and event.ended and not self._said_waiting:
            kind, row = event.result
            if kind is ClaimKind.EXISTING and row.state in ("claimed", "issued"):
                self._said_waiting = True
                self.say("waits", row.state)

    def _point_of(self, event: Event) -> str | None:
        if event.operation == "put":
            _, _, _, config, _, metadata, _ = event.args
            steps = _STEPS.get(self._kind, _USUAL_STEPS)
            inside = bool(config["configurable"].get("checkpoint_ns"))
            return steps.get(metadata["step"]) if inside == (self._kind in IN_SUBGRAPHS) else None
        if event.operation == "put_writes":
            _, _, _, _, writes, _, path = event.args
            of_tool = "__pregel_push" in path if self._kind in PUSHED else "tools" in path
            if self._kind in PUSHED:
                of_tool = of_tool and "payment" in str(writes)
            return "writes put" if of_tool else None
        return event.operation


def build(request: Request, saver: DurableSaver, points: _Points) -> Graph:
    """Return a graph of a model that asks for a payment, a tool that pays, and a last node."""
    vendor = request.vendor
    flaky = [request.flaky]

    def look(record: Any) -> Happened | NotHappened:
        if flaky.pop() if flaky else False:
            raise RuntimeError("the vendor is away")
        done = vendor.payments(record.args["order"])
        if request.settle:
            points.say("looked", len(done))
        return Happened(done[0]) if done else NotHappened()

    policy = EffectPolicy(
        verify=look if request.verify else None,
        on_unknown=request.on_unknown,
        scope=request.scope,
        verify_after=request.settle,
        idempotency_window=datetime.timedelta(seconds=request.idempotency_window)
        if request.idempotency_window is not None
        else None,
        lease=datetime.timedelta(seconds=request.lease),
        wait_timeout=request.wait,
        failed_on=request.failed_on,
    )

    def send(order: str, cents: int, key: str) -> dict[str, Any]:
        points("before request")
        answer = vendor.pay(order, cents, key)
        points("after response")
        return answer

    @effect(policy=policy, key=(lambda order, cents: order) if request.named else None)
    def pay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return send(order, cents, current_effect().idempotency_key)

    @effect(policy=policy, key=(lambda order, cents: order) if request.named else None, name="pay")
    async def apay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return await asyncio.to_thread(send, order, cents, current_effect().idempotency_key)

    args = {"order": request.order, "cents": CENTS}

    def model(state: MessagesState) -> dict[str, Any]:
        # As from a provider: the message's id is new each time, the call's is not.
        asked = [{"name": "pay", "args": args, "id": "call_1"}]
        if request.kind == "send":
            asked.append({"name": "look_up", "args": {"order": request.order}, "id": "call_2"})
        return {"messages": [AIMessage("", id=f"ai-{uuid.uuid4()}", tool_calls=asked)]}

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("assistant", str(pay(**args)))]}  # type: ignore[arg-type]

    async def anode(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("assistant", str(await apay(**args)))]}  # type: ignore[arg-type]

    def raw(state: MessagesState) -> dict[str, Any]:
        log = saver.effects
        with log.effect("pay", key=request.order, args=args, policy=policy, issued=False) as e:
            if not e.replayed:
                e.issue()
                e.complete(send(request.order, CENTS, e.idempotency_key))
            return {"messages": [("assistant", str(e.result))]}

    async def araw(state: MessagesState) -> dict[str, Any]:
        log = saver.effects
        async with log.aeffect("pay", key=request.order, args=args, policy=policy, issued=False) as e:
            if not e.replayed:
                await e.issue()
                await e.complete(await asyncio.to_thread(send, request.order, CENTS, e.idempotency_key))
            return {"messages": [("assistant", str(e.result))]}

    again = RetryPolicy(
        initial_interval=0.1, backoff_factor=1.0, max_attempts=100, jitter=False, retry_on=EffectError
    )
    retry = again if request.retry else None
    if request.kind == "agent":
        return _agent(request, saver, send, policy, again)
    if request.kind == "task":
        return _function(request, saver, apay if request.asynchronous else pay, args, retry)

    def plain_pay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return send(order, cents, current_effect().idempotency_key)

    async def plain_apay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return await asyncio.to_thread(send, order, cents, current_effect().idempotency_key)

    tools: Any
    if request.kind == "wrapped":
        wrapper = saver.effects.tool_wrapper({"pay": policy})
        own = StructuredTool.from_function(plain_pay, plain_apay, name="pay")
        tools = ToolNode(
            [own], wrap_tool_call=wrapper.wrap_tool_call, awrap_tool_call=wrapper.awrap_tool_call
        )
    elif request.kind == "node":
        tools = anode if request.asynchronous else node
    elif request.kind == "raw":
        tools = araw if request.asynchronous else raw
    else:
        tools = ToolNode([tool("pay")(apay if request.asynchronous else pay), look_up])

    def fan_out(state: MessagesState) -> list[Send]:
        last: Any = state["messages"][-1]
        alone = [last.model_copy(update={"tool_calls": [call]}) for call in last.tool_calls]
        return [Send("tools", {"messages": [*state["messages"][:-1], message]}) for message in alone]

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools, retry_policy=retry)
    builder.add_node("last", lambda state: {})
    builder.add_edge(START, "model")
    if request.kind == "send":
        builder.add_conditional_edges("model", fan_out, ["tools"])
    else:
        builder.add_edge("model", "tools")
    builder.add_edge("tools", "last")
    if request.kind not in IN_SUBGRAPHS:
        return builder.compile(checkpointer=saver)
    outer = StateGraph(MessagesState)
    stateful = True if request.kind == "stateful subgraph" else None
    outer.add_node("inner", builder.compile(checkpointer=stateful))
    outer.add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


@tool
def look_up(order: str) -> str:
    """Look an order up."""
    return f"looked up {order}"


def _agent(
    request: Request, saver: DurableSaver, send: Any, policy: EffectPolicy, again: RetryPolicy
) -> Graph:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware

    from langgraph_durable import EffectMiddleware

    def pay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return send(order, cents, current_effect().idempotency_key)  # type: ignore[no-any-return]

    async def apay(order: str, cents: int) -> dict[str, Any]:
        """Pay for an order."""
        return await asyncio.to_thread(pay, order, cents)

    others: list[AgentMiddleware[Any, Any]] = [HumanInTheLoopMiddleware(interrupt_on={"other": True})]
    if request.retry:
        retries = ToolRetryMiddleware(
            max_retries=100,
            retry_on=(EffectError,),
            on_failure="error",
            initial_delay=0.1,
            backoff_factor=0.0,
            jitter=False,
        )
        others.append(retries)
    made: Graph = create_agent(
        _Model(order=request.order),
        [StructuredTool.from_function(pay, apay), look_up],
        middleware=[
            *others,
            EffectMiddleware(saver.effects, {"pay": policy, "look_up": READ_ONLY}),
        ],
        checkpointer=saver,
    )
    return made


class _Model(BaseChatModel):
    """A model that asks for a payment and a look-up, and then reports their results."""

    order: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        # Also if the answer came before a new message: what a model saw it does not ask for again.
        if any(isinstance(message, ToolMessage) for message in messages):
            said = AIMessage(str([m.content for m in messages if isinstance(m, ToolMessage)]))
        else:
            pay = {"name": "pay", "args": {"order": self.order, "cents": CENTS}, "id": "call_1"}
            look = {"name": "look_up", "args": {"order": self.order}, "id": "call_2"}
            said = AIMessage("", id=f"ai-{uuid.uuid4()}", tool_calls=[pay, look])
        return ChatResult(generations=[ChatGeneration(message=said)])


def _function(request: Request, saver: DurableSaver, pay: Any, args: Any, retry: RetryPolicy | None) -> Graph:
    """Return a workflow of the functional API whose task calls the effect."""
    made: Any
    if request.asynchronous:

        @task(retry_policy=retry)  # type: ignore[arg-type] # mypy takes it for the other overload
        async def apaying() -> Any:
            return await pay(**args)

        @entrypoint(checkpointer=saver)
        async def aworkflow(given: Any) -> Any:
            return {"messages": [AIMessage(str(await apaying()))]}

        made = aworkflow
    else:

        @task(retry_policy=retry)  # type: ignore[arg-type] # mypy takes it for the other overload
        def paying() -> Any:
            return pay(**args)

        @entrypoint(checkpointer=saver)
        def workflow(given: Any) -> Any:
            return {"messages": [AIMessage(str(paying().result()))]}

        made = workflow
    function: Graph = made
    return function
