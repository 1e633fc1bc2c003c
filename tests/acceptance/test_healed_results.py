"""What a healed or replayed result is: the message that ToolNode would have made, with a mark."""

from __future__ import annotations

from typing import Annotated, Any, cast

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, EffectError, EffectPolicy, effect
from langgraph_durable.effects._healing.conversation import Conversation
from langgraph_durable.errors import EffectAbandonedError, InvalidConfigError
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import World, agent, answer, calls, made, remind
from tests.acceptance.heal_graphs import Model, answers, asking, build, problem, say

pytestmark = pytest.mark.context

VALUES: list[Any] = [
    "text",
    "",
    None,
    7,
    {"a": [1, None], "b": "ü"},
    [1, 2],
    [],
    ["a", "b"],
    [{"type": "text", "text": "x"}],
    [{"type": "other", "text": "x"}],
    [{"type": "text", "text": "x"}, "y"],
    ("a", 1),
    b"bytes",
]


def returning(value: Any, **options: Any) -> tuple[BaseTool, BaseTool]:
    """Return two tools of one name that return a value: without and with @effect."""

    def act(text: str) -> Any:
        """Act."""
        return value

    decorated = effect(name="act")(act)
    return (
        StructuredTool.from_function(act, name="act", **options),
        StructuredTool.from_function(decorated, name="act", **options),
    )


class Stopping:
    """Fails the node after its tools, once, so that their step runs again or is abandoned."""

    def __init__(self) -> None:
        self.is_due = True

    def __call__(self, state: Any) -> Any:
        if self.is_due:
            self.is_due = False
            raise ConnectionResetError
        return {}


class State(MessagesState):
    """Messages, and a channel that Commands write to."""

    noted: str


def one_node(saver: DurableSaver | None, tools: list[BaseTool], asked: AIMessage, stop: Any = None) -> Any:
    """Return a graph that runs a ToolNode and then perhaps fails, in one task, so that the results are lost."""
    node = ToolNode(tools, handle_tool_errors=False)

    def act(state: State, config: RunnableConfig) -> Any:
        made = node.invoke(state, config)
        if stop is not None:
            stop(state)
        return made

    builder = StateGraph(State)
    builder.add_node("model", lambda state: {"messages": [asked]})
    builder.add_node("tools", act)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=saver)


def usual(tools: list[BaseTool], asked: AIMessage) -> ToolMessage:
    """Return what ToolNode answers without any effect."""
    [message] = one_node(None, tools, asked).invoke(say("go"))["messages"][2:]
    assert isinstance(message, ToolMessage)
    return message


def same(message: ToolMessage) -> dict[str, Any]:
    dumped = message.model_dump()
    return {name: dumped[name] for name in ("content", "name", "tool_call_id", "status", "artifact")}


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("known", [True, False], ids=["tools known", "tools not known"])
def test_a_healed_result_is_what_tool_node_would_have_made(
    saver: DurableSaver, value: Any, known: bool
) -> None:
    plain, decorated = returning(value)
    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    expected = usual([plain], asked)
    with pytest.raises(ConnectionResetError):
        one_node(saver, [decorated], asked, Stopping()).invoke(say("go"), thread())
    if isinstance(value, tuple) and not known:
        return  # it would be taken for a pair of content and artifact
    healed = saver.effects.heal([asked], thread(), tools=[decorated] if known else [])
    [_, message] = healed
    assert isinstance(message, ToolMessage)
    assert same(message) == same(expected)
    mark = message.additional_kwargs["effect"]
    assert message.response_metadata["effect"] == mark
    [record] = saver.effects.list()
    assert (mark["effect_id"], mark["source"], mark["replayed"]) == (record.effect_id, "executed", True)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_replay_of_a_plain_result_is_marked(saver: DurableSaver, value: Any) -> None:
    plain, decorated = returning(value)
    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    expected = usual([plain], asked)
    graph = one_node(saver, [decorated], asked, Stopping())
    with pytest.raises(ConnectionResetError):
        graph.invoke(say("go"), thread())
    message = graph.invoke(None, thread())["messages"][-1]
    assert same(message) == same(expected)
    assert message.additional_kwargs["effect"]["replayed"]
    assert message.response_metadata["effect"] == message.additional_kwargs["effect"]


def test_an_artifact_is_kept(saver: DurableSaver) -> None:
    plain, decorated = returning(("text", {"rows": [1]}), response_format="content_and_artifact")
    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    expected = usual([plain], asked)
    assert expected.artifact == {"rows": [1]}
    graph = one_node(saver, [decorated], asked, Stopping())
    with pytest.raises(ConnectionResetError):
        graph.invoke(say("go"), thread())
    for tools in ([decorated], []):
        healed = saver.effects.heal([asked], thread(), tools=tools)[-1]
        assert isinstance(healed, ToolMessage)
        assert same(healed) == same(expected)
    replayed = graph.invoke(None, thread())["messages"][-1]
    assert same(replayed) == same(expected)
    assert replayed.additional_kwargs["effect"]["replayed"]


def test_commands_are_kept_with_their_updates(saver: DurableSaver) -> None:
    @tool
    @effect
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Note it."""
        answer = ToolMessage("noted", tool_call_id=tool_call_id, name="note", status="success")
        return Command(update={"messages": [answer, HumanMessage("mind this")], "noted": text})

    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="note", args={"text": "a"}, id="1")])
    with pytest.raises(ConnectionResetError):
        one_node(saver, [note], asked, Stopping()).invoke(say("go"), thread())

    builder = StateGraph(State)
    builder.add_node("heal", lambda state: saver.effects.heal(state["messages"]).command)
    builder.add_edge(START, "heal")
    healing: Any = builder.compile(checkpointer=saver)
    result = healing.invoke(say("and?"), thread())
    assert [m.content for m in result["messages"]] == ["go", "", "noted", "mind this", "and?"]
    assert result["noted"] == "a"
    assert healing.invoke(say("more"), thread())["messages"][:-1] == result["messages"]


def test_what_a_finished_task_wrote_besides_its_answer_is_kept(saver: DurableSaver) -> None:
    """Each call is a task: one returned a Command, its sibling failed."""

    @tool
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Note it; not an effect."""
        answer = ToolMessage("noted", id="kept", tool_call_id=tool_call_id, artifact=[1])
        return Command(update={"messages": [answer], "noted": text})

    from langgraph.types import Send

    done: list[str] = []

    def run(given: dict[str, Any]) -> Any:
        if given["name"] == "fails":
            from tests.acceptance.test_kills import wait_until

            wait_until(lambda: bool(done))
            raise ConnectionResetError
        [command] = ToolNode([note]).invoke([{**given, "type": "tool_call"}])
        done.append("note")
        return command

    asked = asking("note", "fails").model_copy(update={"id": "m"})
    builder = StateGraph(State)
    builder.add_node("heal", lambda state: saver.effects.heal(state["messages"]).command)
    builder.add_node("model", lambda state: {"messages": [] if done else [asked]})
    builder.add_node("tools", cast("Any", run))
    builder.add_edge(START, "heal")
    builder.add_edge("heal", "model")
    builder.add_conditional_edges(
        "model", lambda state: END if done else [Send("tools", call) for call in asked.tool_calls]
    )
    graph: Any = builder.compile(checkpointer=saver)
    with pytest.raises(ConnectionResetError):
        graph.invoke(say("go"), thread())
    result = graph.invoke(say("and?"), thread())
    given = answers(result["messages"])
    assert (given["call_note"].id, given["call_note"].artifact) == ("kept", [1])
    assert "not known whether it ran" in str(given["call_fails"].content)
    assert result["noted"] == "a"


def test_a_result_that_was_not_kept_took_place_all_the_same(saver: DurableSaver) -> None:
    _, decorated = returning(lambda: 1)  # cannot be serialized
    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    with pytest.raises(ConnectionResetError):
        one_node(saver, [decorated], asked, Stopping()).invoke(say("go"), thread())
    message = saver.effects.heal([asked], thread())[-1]
    assert message.content == "The call of act took place, but its result was not kept. Do not repeat it."
    assert isinstance(message, ToolMessage)
    assert message.status == "success"


def test_a_large_result_is_found(saver: DurableSaver) -> None:
    _, decorated = returning("x" * (2 << 20))
    asked = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    with pytest.raises(ConnectionResetError):
        one_node(saver, [decorated], asked, Stopping()).invoke(say("go"), thread())
    assert saver.effects.heal([asked], thread())[-1].content == "x" * (2 << 20)


# --- which call ---


def test_ids_that_a_provider_uses_again(saver: DurableSaver) -> None:
    """Two messages with one tool_call_id, and one message with the id twice: each gets its own results."""
    _, decorated = returning(None)
    sent: list[str] = []

    def act(text: str) -> str:
        """Act."""
        sent.append(text)
        return f"did {text}"

    decorated = StructuredTool.from_function(effect(name="act")(act), name="act")
    first = AIMessage("", id="m1", tool_calls=[ToolCall(name="act", args={"text": "a"}, id="1")])
    pair = [ToolCall(name="act", args={"text": t}, id="1") for t in ("b", "c")]
    second = AIMessage("", id="m2", tool_calls=pair)
    for asked in (first, second):
        with pytest.raises(ConnectionResetError):
            one_node(saver, [decorated], asked, Stopping()).invoke(say("go"), thread())
    healed = saver.effects.heal([first, HumanMessage("?", id="h"), second], thread())
    assert [m.content for m in healed if isinstance(m, ToolMessage)] == ["did a", "did b", "did c"]
    assert problem(healed) is None
    assert sorted(sent) == ["a", "b", "c"]


def test_an_abandoned_write_under_the_same_id_is_not_another_messages_answer(saver: DurableSaver) -> None:
    """The first message's answer was healed long ago; the second one's tool never ran."""
    tools = [plain_tool()]
    asked = [asking("looks"), asking("looks", text="b")]

    def build_graph(number: int) -> Any:
        def heal(state: MessagesState) -> Any:
            return saver.effects.heal(state["messages"], tools=tools).command

        def fail(state: MessagesState) -> Any:
            raise ConnectionResetError

        builder = StateGraph(MessagesState)
        builder.add_node("heal", heal)
        builder.add_node("model", lambda state: {"messages": [asked[number]]})
        builder.add_node("tools", ToolNode(tools))
        builder.add_node("fails", fail)
        builder.add_edge(START, "heal")
        builder.add_edge("heal", "model")
        builder.add_edge("model", "tools")
        builder.add_edge("model", "fails")
        return builder.compile(checkpointer=saver)

    with pytest.raises(ConnectionResetError):
        build_graph(0).invoke(say("go"), thread())
    build_graph(1).invoke(say("more"), thread(), interrupt_before=["tools"])
    builder = StateGraph(MessagesState)
    builder.add_node("heal", lambda state: saver.effects.heal(state["messages"], tools=tools).command)
    builder.add_edge(START, "heal")
    graph: Any = builder.compile(checkpointer=saver)
    result = graph.invoke(say("and?"), thread())
    found = [m.content for m in result["messages"] if isinstance(m, ToolMessage)]
    assert len(found) == 2
    assert found[1] == "The call of looks has no recorded result. It is not known whether it ran."


def plain_tool() -> BaseTool:
    @tool
    def looks(text: str) -> str:
        """Look."""
        return f"saw {text}"

    return looks


def test_malformed_calls_are_answered_too(saver: DurableSaver) -> None:
    bad = AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "act", "args": "{", "id": "1", "error": None, "type": "invalid_tool_call"}
        ],
    )
    healed = saver.effects.heal([bad, HumanMessage("?")], thread())
    assert problem(healed) is None
    assert healed[1].content == "The call of act was not run, because its arguments are malformed."


# --- the method ---


def test_nothing_is_read_if_nothing_dangles(saver: DurableSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [
        HumanMessage("go"),
        asking("a"),
        ToolMessage("done", tool_call_id="call_a"),
        AIMessage("done"),
    ]
    saver.close()  # no statement would run
    healed = saver.effects.heal(whole)
    assert healed.command is None
    assert list(healed) == whole
    with pytest.raises(InvalidConfigError, match="no thread_id"):
        saver.effects.heal(whole[:2])


def test_messages_may_be_dicts(saver: DurableSaver) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "act", "arguments": "{}"}}
    given = [{"role": "assistant", "content": "", "tool_calls": [call]}, ("user", "and?")]
    healed = saver.effects.heal(given, thread())
    assert [message.type for message in healed] == ["ai", "tool", "human"]


def test_appended_answers_do_not_rewrite_the_conversation(saver: DurableSaver) -> None:
    """The command has what changes: here, one message."""
    given: list[AnyMessage] = [HumanMessage("go", id="h"), asking("a").model_copy(update={"id": "m"})]
    healed = saver.effects.heal(given, thread())
    assert healed.command is not None
    assert healed.command.update == [("messages", [healed[-1]])]
    assert add_messages(given, [healed[-1]]) == list(healed)  # type: ignore[arg-type]


def test_other_channels_and_reducers(saver: DurableSaver) -> None:
    class Plain(TypedDict):
        talk: list[Any]

    def heal(state: Plain) -> Any:
        return {"talk": list(saver.effects.heal(state["talk"], messages_key="talk"))}

    builder = StateGraph(Plain)
    builder.add_node("heal", heal)
    builder.add_edge(START, "heal")
    result = builder.compile(checkpointer=saver).invoke({"talk": [asking("a"), HumanMessage("?")]}, thread())
    assert problem(result["talk"]) is None


# --- final decisions ---


@pytest.mark.parametrize("decision", ["abandon", "failed"])
@pytest.mark.parametrize("form", ["decorated", "wrapped", "agent"])
async def test_a_decision_against_a_call_is_told_to_the_model(
    saver: DurableSaver, drive: Drive, world: World, form: str, decision: str
) -> None:
    policy = EffectPolicy(on_unknown="ask")
    world.trouble = [TimeoutError()]
    if form == "decorated":
        graph = agent(saver, [made(drive, remind(world), policy=policy)], calls(("remind", "a", "1")))
    else:
        if form == "agent":
            pytest.importorskip("langchain.agents", reason="langchain is not installed")
        foreign = StructuredTool.from_function(
            lambda text: world(text), name="remind", description="Remind.", coroutine=None
        )
        model = Model(script=[calls(("remind", "a", "1"))])
        kind: Any = "agent" if form == "agent" else "node"
        graph = build(kind, saver, model, [foreign], policies={"remind": policy})
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, say("go"), thread())
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    result = await drive.invoke(graph, Command(resume=answer(asked, decision)), thread())
    [message] = [m for m in result["messages"] if isinstance(m, ToolMessage)]
    assert message.status == "error"
    assert "a human decided" in str(message.content)
    [record] = saver.effects.list()
    assert message.additional_kwargs["effect"]["effect_id"] == record.effect_id
    assert message.additional_kwargs["effect"]["state"] == record.state
    assert world.done == ["a"]


def test_a_decision_against_an_effect_inside_another_is_an_error_of_the_outer_one(
    saver: DurableSaver, world: World
) -> None:
    """It says nothing about the outer one, which may have done something else."""
    drive = Drive(asynchronous=False)

    @effect(on_unknown="ask")
    def inner(text: str) -> str:
        return world(text)

    def outer(text: str) -> Any:
        return inner(text)

    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, outer, idempotent=True)], calls(("outer", "a", "1")))
    with pytest.raises(TimeoutError):
        graph.invoke(say("go"), thread())
    graph.invoke(None, thread())
    [asked] = interrupts(graph.get_state(thread()))
    with pytest.raises(EffectAbandonedError):
        graph.invoke(Command(resume=answer(asked, "abandon")), thread())
    assert world.done == ["a"]


def test_in_code_a_decision_against_a_call_is_an_error(saver: DurableSaver, world: World) -> None:
    @effect(on_unknown="ask")
    def pay(text: str) -> str:
        return world(text)

    world.trouble = [TimeoutError()]
    builder = StateGraph(MessagesState)
    builder.add_node("pays", lambda state: {"messages": [("ai", pay("a"))]})
    builder.add_edge(START, "pays")
    graph: Any = builder.compile(checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke(say("go"), thread())
    graph.invoke(None, thread())
    [asked] = interrupts(graph.get_state(thread()))
    with pytest.raises(EffectError, match="declared failed by a human"):
        graph.invoke(Command(resume=answer(asked, "failed")), thread())
    assert world.done == ["a"]


def test_a_replay_in_code_stays_plain(saver: DurableSaver) -> None:
    @effect
    def pay(text: str) -> str:
        return f"paid {text}"

    stop = Stopping()
    seen: list[Any] = []

    def node(state: Any) -> Any:
        seen.append(pay("a"))
        return stop(state)

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph: Any = builder.compile(checkpointer=saver)
    with pytest.raises(ConnectionResetError):
        graph.invoke(say("go"), thread())
    graph.invoke(None, thread())
    assert seen == ["paid a", "paid a"]


def test_answers_are_read_as_calls_and_answers() -> None:
    """A second answer is left out, one that answers nothing stays."""
    orphan = ToolMessage("?", tool_call_id="none")
    asked = asking("a", "b")
    given = [orphan, asked, HumanMessage("?"), ToolMessage("2", tool_call_id="call_b")]
    given += [ToolMessage("3", tool_call_id="call_b"), ToolMessage("1", tool_call_id="call_a")]
    conversation = Conversation(given)
    assert conversation.dangling == []
    assert [m.content for m in conversation.with_answers({}, {})] == ["?", "", "2", "1", "?"]
