"""Tools without @effect, guarded by ToolNode's wrapper and by an agent's middleware."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime, tools_condition
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel, Field

from langgraph_durable import (
    IDEMPOTENT,
    READ_ONLY,
    DurableSaver,
    EffectError,
    EffectPolicy,
    EffectUnknownError,
    Happened,
    effect,
)
from langgraph_durable.effects._identity.hashing import canonical
from langgraph_durable.errors import InvalidConfigError
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import GIVEN, World, answer, before_tools, calls, states, told
from tests.acceptance.graphs import Graph
from tests.samples import await_until

pytestmark = pytest.mark.context

Kind = Literal["node", "agent", "agent with others"]


class ScriptedModel(GenericFakeChatModel):
    """Replies with its script, whatever tools it has."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self


@pytest.fixture(params=["node", "agent", "agent with others"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param != "node":
        pytest.importorskip("langchain.agents", reason="langchain is not installed")
    made: Kind = request.param
    return made


def agent(
    kind: Kind,
    saver: DurableSaver,
    tools: list[BaseTool],
    *script: AIMessage,
    policies: dict[str, EffectPolicy] | None = None,
    errors: Any = False,
    **options: Any,
) -> Graph:
    """An agent whose tools are not decorated, with a separate ToolNode or from langchain."""
    log = saver.effects
    if kind == "node":
        wrapper = log.tool_wrapper(policies, **options)
        return node_agent(saver, tools, wrapper, *script, errors=errors)
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware

    from langgraph_durable import EffectMiddleware

    others: list[AgentMiddleware[Any, Any]] = []
    if kind == "agent with others":
        others = [
            HumanInTheLoopMiddleware(interrupt_on={"never called": True}),
            ToolRetryMiddleware(max_retries=0, on_failure="continue" if errors else "error"),
        ]
    elif errors:
        others = [ToolRetryMiddleware(max_retries=0, on_failure="continue")]
    model = ScriptedModel(messages=iter([*(m.model_copy() for m in script), *[AIMessage("done")] * 9]))
    made: Graph = create_agent(
        model,
        tools,
        middleware=[*others, EffectMiddleware(log, policies, **options)],
        checkpointer=saver,
        store=InMemoryStore(),
    )
    return made


def node_agent(
    saver: DurableSaver, tools: list[BaseTool], wrapper: Any, *script: AIMessage, errors: Any = False
) -> Graph:
    def model(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(m, AIMessage) for m in state["messages"])
        message = script[said] if said < len(script) else AIMessage("done")
        return {"messages": [message.model_copy(update={"id": None})]}

    node = ToolNode(
        tools,
        wrap_tool_call=wrapper.wrap_tool_call,
        awrap_tool_call=wrapper.awrap_tool_call,
        handle_tool_errors=errors,
    )
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver, store=InMemoryStore())


# --- tools of all kinds; each returns what it did ---

Make = Callable[[World], BaseTool]


def structured(world: World) -> BaseTool:
    def act(text: str) -> str:
        """Do it."""
        return world(text)

    async def aact(text: str) -> str:
        """Do it."""
        return world(text)

    return StructuredTool.from_function(act, aact, name="act")


def only_sync(world: World) -> BaseTool:
    def act(text: str) -> str:
        """Do it."""
        return world(text)

    return StructuredTool.from_function(act, name="act")


class Arguments(BaseModel):
    text: str = Field(min_length=1)


class Act(BaseTool):
    """A tool that is a class."""

    name: str = "act"
    description: str = "Do it."
    args_schema: Any = Arguments
    world: Any

    def _run(self, text: str, config: RunnableConfig, run_manager: Any = None) -> str:
        assert config["configurable"]["thread_id"] == "thread"
        assert run_manager is not None
        did: str = self.world(text)
        return did


class BothAct(Act):
    async def _arun(self, text: str, config: RunnableConfig, run_manager: Any = None) -> str:
        return self._run(text, config, run_manager)


def by_schema(world: World) -> BaseTool:
    """With a JSON schema, as MCP tools have."""

    async def call(**arguments: Any) -> str:
        return world(arguments["text"])

    def sync_call(**arguments: Any) -> str:
        return world(arguments["text"])

    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return StructuredTool(
        name="act", description="Do it.", args_schema=schema, func=sync_call, coroutine=call
    )


def with_artifact(world: World) -> BaseTool:
    @tool("act", response_format="content_and_artifact")
    def act(text: str) -> tuple[str, dict[str, Any]]:
        """Do it."""
        return world(text), {"raw": [1, 2]}

    return act


def injected(world: World) -> BaseTool:
    @tool("act")
    def act(
        text: str,
        state: Annotated[dict[str, Any], InjectedState],
        store: Annotated[BaseStore, InjectedStore()],
        call_id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
    ) -> ToolMessage:
        """Do it."""
        assert state["messages"]
        store.put(("done",), call_id, {"text": text})
        assert runtime.tool_call_id == call_id
        return ToolMessage(world(text), tool_call_id=call_id)

    return act


def commanding(world: World) -> BaseTool:
    @tool("act")
    def act(text: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Do it."""
        return Command(update={"messages": [ToolMessage(world(text), tool_call_id=call_id)]})

    return act


KINDS: list[Make] = [
    structured,
    only_sync,
    lambda world: Act(world=world),
    lambda world: BothAct(world=world),
    by_schema,
    with_artifact,
    injected,
    commanding,
]
NAMES = ["structured", "only sync", "class", "class, both", "schema", "artifact", "injected", "command"]


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
async def test_a_tool_call_runs_once_and_is_replayed(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind, make: Make
) -> None:
    graph = agent(kind, saver, [make(world)], calls(("act", "a", "1")))
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result) == ["did a"]
    again = await drive.invoke(graph, None, await before_tools(drive, graph))
    assert told(again) == ["did a"]
    assert world.done == ["a"]
    [record] = saver.effects.list()
    assert (record.tool, record.args, record.state, record.attempts) == (
        "act",
        {"text": "a"},
        "completed",
        1,
    )
    first, second = (next(m for m in r["messages"] if isinstance(m, ToolMessage)) for r in (result, again))
    assert first.tool_call_id == second.tool_call_id == "1"
    assert first.artifact == second.artifact
    assert first.id != second.id
    assert "effect" not in first.response_metadata
    mark = second.response_metadata["effect"]
    assert (mark["replayed"], mark["effect_id"], mark["source"]) == (True, record.effect_id, "executed")


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
async def test_an_unknown_tool_call_is_not_run_again(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind, make: Make
) -> None:
    """The log sees the exception, though the tool node turns it into a message."""
    world.trouble = [TimeoutError("no answer")]
    graph = agent(kind, saver, [make(world)], calls(("act", "a", "1")), errors=True)
    [said] = told(await drive.invoke(graph, GIVEN, thread()))
    assert "no answer" in said
    [record] = saver.effects.list()
    assert (record.state, record.error) == ("unknown", "TimeoutError: no answer")
    [said] = told(await drive.invoke(graph, None, await before_tools(drive, graph)))
    assert "it is unknown whether it took place" in said
    assert world.done == ["a"]


async def test_arguments_outside_the_schema_distinguish_calls(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """A server's tools may take more arguments than they declare."""

    def act(text: str, **more: Any) -> str:
        return world(f"{text} {more}")

    open_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
    tool_ = StructuredTool(name="act", description="Do it.", args_schema=open_schema, func=act)
    script = [
        AIMessage("", tool_calls=[{"name": "act", "args": {"text": "a", "to": to}, "id": to}])
        for to in ("one", "other")
    ]
    log = saver.effects
    wrapper = log.tool_wrapper({"act": EffectPolicy(scope="thread")})
    await drive.invoke(node_agent(saver, [tool_], wrapper, *script), GIVEN, thread())
    assert world.done == ["a {'to': 'one'}", "a {'to': 'other'}"]
    assert [record.args for record in log.list()] == [
        {"text": "a", "to": "one"},
        {"text": "a", "to": "other"},
    ]


class Tags(BaseModel):
    tags: set[int]


def test_sets_are_compared_by_their_elements() -> None:
    """Not by their order, which differs between processes."""
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    for wrap in (lambda tags: tags, lambda tags: {"in": [frozenset(tags)]}, lambda tags: [Tags(tags=tags)]):
        assert canonical(wrap(one)) == canonical(wrap(other))
    assert canonical({"0", "8"}) != canonical({0, 8})
    assert canonical([8, 0]) == "[8,0]"


async def test_async_bodies_behind_plain_decorators_are_awaited(
    saver: DurableSaver, world: World, kind: Kind
) -> None:
    """A decorator around an async function is often a plain function that returns a coroutine."""

    async def act(text: str) -> str:
        """Do it."""
        await asyncio.sleep(0)
        return world(text)

    @functools.wraps(act)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return act(*args, **kwargs)

    world.trouble = [TimeoutError("no answer")]
    tool_ = StructuredTool.from_function(coroutine=traced, name="act")
    graph = agent(kind, saver, [tool_], calls(("act", "a", "1")), calls(("act", "b", "2")), errors=True)
    said = told(await graph.ainvoke(GIVEN, thread(), durability="sync"))
    assert "no answer" in said[0]
    assert said[1] == "did b"
    first, second = saver.effects.list()
    assert (first.state, second.state, second.result_lost) == ("unknown", "completed", False)


class AsyncOverride(StructuredTool):
    """Overrides one of the two methods that run functions."""

    world: Any

    async def _arun(self, *args: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        return self.world(kwargs["text"])


async def test_a_tool_class_that_overrides_only_arun_is_guarded(
    saver: DurableSaver, world: World, kind: Kind
) -> None:
    async def act(text: str) -> str:
        """Do it."""
        raise AssertionError("it is overridden")

    tool_ = AsyncOverride.from_function(coroutine=act, name="act", world=world)
    await agent(kind, saver, [tool_], calls(("act", "a", "1"))).ainvoke(GIVEN, thread())
    assert world.done == ["a"]
    assert states(saver) == ["completed"]


async def test_policies_are_found_by_tool_name(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    seen: list[str] = []

    def find(record: Any) -> Happened:
        seen.append(record.args["text"])
        return Happened("found it")

    def made(name: str) -> BaseTool:
        async def aact(text: str) -> str:
            return world(f"{name} {text}")

        def act(text: str) -> str:
            return world(f"{name} {text}")

        return StructuredTool.from_function(act, aact, name=name, description="Do it.")

    policies = {"pay": EffectPolicy(verify=find), "look": READ_ONLY, "again": IDEMPOTENT}
    for name in policies:
        world.trouble = [TimeoutError()]
        script = calls((name, "a", "1"))
        graph = agent(kind, saver, [made(n) for n in policies], script, policies=policies)
        config = thread(name)
        with pytest.raises(TimeoutError):
            await drive.invoke(graph, GIVEN, config, durability="sync")
        result = await drive.invoke(graph, None, config)
        assert told(result) == ["found it" if name == "pay" else f"did {name} a"]
    assert seen == ["a"]
    assert world.done == ["pay a", "look a", "look a", "again a", "again a"]
    assert [r.tool for r in saver.effects.list()] == ["pay", "again"]


async def test_the_logs_own_wrapper_uses_the_default_policy(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    log = saver.effects
    world.trouble = [TimeoutError()]
    graph = node_agent(saver, [structured(world)], log, calls(("act", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    with pytest.raises(EffectUnknownError):
        await drive.invoke(graph, None, thread())
    log.resolve(log.pending()[0].effect_id, Happened("it did"))
    assert told(await drive.invoke(graph, None, thread())) == ["it did"]
    assert world.done == ["a"]


async def test_invalid_arguments_are_no_effect(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    script = (calls(("act", "", "1")), calls(("act", "a", "1")))
    graph = agent(kind, saver, [Act(world=world)], *script, errors=True)
    result = await drive.invoke(graph, GIVEN, thread())
    assert "at least 1 character" in told(result)[0]
    assert told(result)[1:] == ["did a"]
    assert states(saver) == ["completed"]


async def test_a_tool_that_handles_its_errors_still_records_them(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    def act(text: str) -> str:
        """Do it."""
        world(text)
        raise ToolException("declined")

    tools: list[BaseTool] = [StructuredTool.from_function(act, name="act", handle_tool_error=True)]
    definite = {"act": EffectPolicy(failed_on=ToolException)}
    graph = agent(kind, saver, tools, calls(("act", "a", "1")), policies=definite)
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["declined"]
    [record] = saver.effects.list()
    assert (record.state, record.error) == ("failed", "ToolException: declined")


async def test_interrupts_of_tool_and_log_get_their_own_answers(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    """A human answers the tool's interrupt and the log's."""

    def act(text: str) -> str:
        """Do it."""
        return world(f"{text} {interrupt('really?')}")

    world.trouble = [TimeoutError()]
    tools: list[BaseTool] = [StructuredTool.from_function(act, name="act")]
    policies = {"act": EffectPolicy(on_unknown="ask")}
    graph = agent(kind, saver, tools, calls(("act", "a", "1")), policies=policies)
    await drive.invoke(graph, GIVEN, thread())
    assert [i.value for i in interrupts(await drive.state(graph, thread()))] == ["really?"]
    assert states(saver) == ["suspended"]
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, Command(resume="yes"), thread())
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    result = await drive.invoke(graph, Command(resume=answer(asked, "happened", result="ok")), thread())
    assert told(result) == ["ok"]
    assert world.done == ["a yes"]


async def test_a_cancelled_sync_tool_that_completes_later_is_replayed(
    saver: DurableSaver, world: World, kind: Kind
) -> None:
    started, go = threading.Event(), threading.Event()

    def act(text: str) -> str:
        """Do it."""
        started.set()
        go.wait()
        return world(text)

    tools: list[BaseTool] = [StructuredTool.from_function(act, name="act")]
    graph = agent(kind, saver, tools, calls(("act", "a", "1")))
    run = asyncio.create_task(graph.ainvoke(GIVEN, thread(), durability="sync"))
    await await_until(started.is_set, "the tool to start")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    go.set()
    assert told(await graph.ainvoke(None, thread())) == ["did a"]
    assert world.done == ["a"]


async def test_a_tool_with_effect_is_not_wrapped_again(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    @tool
    @effect(name="its own name", key="k")
    def act(text: str) -> str:
        """Do it."""
        return world(text)

    graph = agent(kind, saver, [act], calls(("act", "a", "1")))
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["did a"]
    assert [r.tool for r in saver.effects.list()] == ["its own name"]


async def test_completed_siblings_of_a_failed_call_are_replayed(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    """Completed siblings do not run again."""

    def act(text: str) -> str:
        """Do it."""
        world(text)
        if text == "b" and world.done.count("b") == 1:
            raise ConnectionRefusedError
        return f"did {text}"

    tools: list[BaseTool] = [StructuredTool.from_function(act, name="act")]
    script = calls(("act", "a", "1"), ("act", "b", "2"), ("act", "c", "3"))
    graph = agent(kind, saver, tools, script)
    with pytest.raises(ConnectionRefusedError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    result = await drive.invoke(graph, None, thread())
    assert told(result) == ["did a", "did b", "did c"]
    assert sorted(world.done) == ["a", "b", "b", "c"]
    ids = [m.tool_call_id for m in result["messages"] if isinstance(m, ToolMessage)]
    assert ids == ["1", "2", "3"]


@pytest.mark.parametrize("found", ["seen", ("seen", {"raw": 1}), ["seen", {"raw": 1}]], ids=repr)
async def test_a_finding_for_a_tool_with_an_artifact_may_be_the_content_or_the_pair(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind, found: Any
) -> None:
    world.trouble = [TimeoutError()]
    policies = {"act": EffectPolicy(verify=lambda record: Happened(found))}
    graph = agent(kind, saver, [with_artifact(world)], calls(("act", "a", "1")), policies=policies)
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    result = await drive.invoke(graph, None, thread())
    assert told(result) == ["seen"]
    [message] = [m for m in result["messages"] if isinstance(m, ToolMessage)]
    assert message.artifact == (None if found == "seen" else {"raw": 1})


class Elsewhere(Act):
    """Has its effect outside its body."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.world(input["args"]["text"])


@pytest.mark.parametrize("name", ["invoke", "generator"])
async def test_tools_that_cannot_be_guarded_are_refused(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind, name: str
) -> None:
    def act(text: str) -> Any:
        """Do it."""
        yield world(text)

    tool_ = Elsewhere(world=world) if name == "invoke" else StructuredTool.from_function(act, name="act")
    graph = agent(kind, saver, [tool_], calls(("act", "a", "1")))
    with pytest.raises(EffectError, match=r"overrides invoke|is a generator"):
        await drive.invoke(graph, GIVEN, thread())
    assert world.done == []
    with pytest.raises(TypeError, match="is a generator"):
        effect()(act)


# --- hints ---


@pytest.mark.parametrize(
    ("default", "hints", "untrusted", "trusted"),
    [
        (EffectPolicy(), {}, EffectPolicy(), EffectPolicy()),
        (EffectPolicy(), {"readOnlyHint": True}, EffectPolicy(), READ_ONLY),
        (EffectPolicy(), {"idempotentHint": True}, EffectPolicy(), IDEMPOTENT),
        (EffectPolicy(), {"annotations": {"readOnlyHint": True}}, EffectPolicy(), READ_ONLY),
        (READ_ONLY, {}, READ_ONLY, READ_ONLY),
        (READ_ONLY, {"readOnlyHint": False}, EffectPolicy(), EffectPolicy()),
        (READ_ONLY, {"destructiveHint": True}, EffectPolicy(), EffectPolicy()),
        (IDEMPOTENT, {"idempotentHint": False}, EffectPolicy(), EffectPolicy()),
        (IDEMPOTENT, {"destructiveHint": True}, EffectPolicy(), EffectPolicy()),
        (IDEMPOTENT, {"destructiveHint": True, "idempotentHint": True}, IDEMPOTENT, IDEMPOTENT),
        (IDEMPOTENT, {"readOnlyHint": "yes", "destructiveHint": None}, IDEMPOTENT, IDEMPOTENT),
    ],
)
def test_hints_adjust_only_the_default_policy(
    saver: DurableSaver,
    world: World,
    default: EffectPolicy,
    hints: dict[str, Any],
    untrusted: EffectPolicy,
    trusted: EffectPolicy,
) -> None:
    log = saver.effects
    hinting = structured(world)
    hinting.metadata = hints
    assert log.tool_wrapper(default=default).policy_for(hinting) == untrusted
    assert log.tool_wrapper(default=default, trust_hints=True).policy_for(hinting) == trusted
    said = log.tool_wrapper({"act": READ_ONLY}, default=default)
    assert said.policy_for(hinting) == READ_ONLY, "an explicit policy is not adjusted"


def test_unusable_wrapper_arguments_are_refused(saver: DurableSaver) -> None:
    log = saver.effects
    with pytest.raises(InvalidConfigError, match="must be an EffectPolicy"):
        log.tool_wrapper({"pay": "ask"})  # type: ignore[dict-item]
    pytest.importorskip("langchain.agents", reason="langchain is not installed")
    from langgraph_durable import EffectMiddleware

    with pytest.raises(InvalidConfigError, match=r"Pass saver\.effects"):
        EffectMiddleware(saver)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["node", "agent"])
async def test_a_policy_of_a_misspelled_tool_is_refused(
    saver: DurableSaver, drive: Drive, world: World, kind: Kind
) -> None:
    """The tool would be run with the default policy, without a word."""
    if kind == "agent":
        pytest.importorskip("langchain.agents", reason="langchain is not installed")
    policies = {"act": READ_ONLY, "atc": EffectPolicy(on_unknown="ask")}
    script = calls(("act", "a", "1"))
    graph = agent(kind, saver, [structured(world)], script, policies=policies)
    with pytest.raises(InvalidConfigError, match=r"policies for 'atc'.*The tools are 'act'"):
        await drive.invoke(graph, GIVEN, thread())
    assert world.done == []
    right = agent(kind, saver, [structured(world)], script, policies={"act": READ_ONLY})
    assert told(await drive.invoke(right, GIVEN, thread("right"))) == ["did a"]


async def test_a_call_edited_by_a_human_is_what_is_recorded(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The approved arguments are recorded and used."""
    agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    from langgraph_durable import EffectMiddleware

    graph = agents.create_agent(
        ScriptedModel(messages=iter([calls(("act", "a", "1")), AIMessage("done")])),
        [structured(world)],
        middleware=[
            HumanInTheLoopMiddleware(interrupt_on={"act": True}),
            EffectMiddleware(saver.effects),
        ],
        checkpointer=saver,
    )
    await drive.invoke(graph, {"messages": [HumanMessage("go")]}, thread())
    assert states(saver) == []
    edited = {"type": "edit", "edited_action": {"name": "act", "args": {"text": "b"}}}
    result = await drive.invoke(graph, Command(resume={"decisions": [edited]}), thread())
    [said] = told(result)
    assert said.endswith("did b")
    assert world.done == ["b"]
    assert [r.args for r in saver.effects.list()] == [{"text": "b"}]
