"""Tool calls that an abandoned step left without an answer are answered with what is known of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_durable import (
    READ_ONLY,
    DurableSaver,
    EffectPolicy,
    Happened,
    NotHappened,
    Undetermined,
    effect,
)
from langgraph_durable.effects._healing.known_tools import KnownTools
from tests.acceptance.driving import Drive, checkpoint_id, interrupts, thread
from tests.acceptance.effect_graphs import World, answer, made
from tests.acceptance.effect_workers import started
from tests.acceptance.graphs import Graph
from tests.acceptance.heal_graphs import (
    READING,
    Kind,
    Model,
    answers,
    asking,
    build,
    problem,
    run_until_killed,
    say,
    shop,
)
from tests.acceptance.test_kills import wait_until
from tests.samples import await_until

pytestmark = pytest.mark.context


@pytest.fixture(params=["agent", "node"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "agent":
        pytest.importorskip("langchain.agents", reason="langchain is not installed")
    made: Kind = request.param
    return made


def count(conninfo: str, query: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def killed_while_slow(kind: Kind, conninfo: str, ledger: Path, drive: Drive) -> None:
    """Run in a process that is killed when the payment and the look-up are done, and their sibling runs."""
    with started(run_until_killed, kind, conninfo, str(ledger), drive.asynchronous) as worker:
        assert worker.hear() == "reached"
        completed = "SELECT count(*) FROM langgraph_durable.effects WHERE state = 'completed'"
        wait_until(lambda: count(conninfo, completed) == 1)
        if kind == "agent":  # each call is a task, so the finished ones leave writes
            written = (
                "SELECT count(*) FROM langgraph_durable.writes WHERE task_path LIKE '%push%' AND idx >= 0"
            )
            wait_until(lambda: count(conninfo, written) >= 2)
        worker.kill()


# --- after a crash ---


async def test_a_new_message_after_a_crash_shows_the_model_the_receipt(
    saver: DurableSaver, conninfo: str, drive: Drive, kind: Kind, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    killed_while_slow(kind, conninfo, ledger, drive)

    model = Model(script=[asking("charge", "look_up", "slow"), AIMessage("paid")])
    graph = build(kind, saver, model, shop(ledger, lambda: None, drive), policies=READING)
    result = await drive.invoke(graph, say("and?"), thread())

    seen = model.seen[-1]
    assert problem(seen) is None
    given = answers(seen)
    assert given["call_charge"].content == "receipt for charge a"
    assert (given["call_charge"].status, given["call_charge"].name) == ("success", "charge")
    assert given["call_charge"].additional_kwargs["effect"]["healed"]
    assert given["call_charge"].additional_kwargs["effect"]["replayed"]
    if kind == "agent":
        assert given["call_look_up"].content == "looked up a"
    else:  # all calls are one task, which wrote nothing
        assert "It changes nothing" in str(given["call_look_up"].content)
    assert given["call_slow"].status == "error"
    assert "may have taken place" in str(given["call_slow"].content)
    assert [m.type for m in seen] == ["human", "ai", "tool", "tool", "tool", "human"]
    assert [m.content for m in result["messages"]][-2:] == ["and?", "paid"]
    assert ledger.read_text() == "charge a\n"
    deliveries = "SELECT count(*) FROM langgraph_durable.effect_deliveries"
    assert count(conninfo, deliveries) == 1


async def test_a_model_that_asks_again_does_not_charge_again(
    saver: DurableSaver, conninfo: str, drive: Drive, tmp_path: Path
) -> None:
    """Without healing: the receipt never reached the state, so the same call is the same effect."""
    ledger = tmp_path / "ledger"
    killed_while_slow("node", conninfo, ledger, drive)

    model = Model(script=[asking("charge"), asking("charge", prefix="again"), AIMessage("paid")])
    await drive.invoke(unhealed(saver, model, shop(ledger, lambda: None, drive)), say("and?"), thread())
    assert ledger.read_text() == "charge a\n"


def unhealed(saver: DurableSaver, model: Model, tools: list[BaseTool]) -> Graph:
    """Return a graph that does not answer dangling calls, as most do."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


async def test_a_call_after_its_result_was_healed_is_a_new_effect(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World
) -> None:
    tools = [made(drive, charge(world)), fails_later(saver, drive)]
    script = [asking("charge", "fails"), asking("charge", prefix="again"), AIMessage("done")]
    await abandon(saver, drive, kind, tools, script[0])
    model = Model(script=script)
    result = await drive.invoke(build(kind, saver, model, tools), say("once more"), thread())
    assert result["messages"][-1].content == "done"
    assert world.done == ["a", "a"], "the first one was delivered, so the second is wanted too"


# --- after an exception, a cancellation, an interrupt ---


def charge(world: World) -> Callable[[str], Any]:
    def charge(text: str) -> Any:
        return world(text)

    return charge


def fails(text: str) -> Any:
    raise ConnectionResetError("no answer")


def fails_later(saver: DurableSaver, drive: Drive) -> BaseTool:
    """Return a tool that fails once another effect is completed; LangGraph then cancels what still runs."""

    def is_due() -> bool:
        return any(record.state == "completed" for record in saver.effects.list())

    if drive.asynchronous:

        @tool("fails")
        @effect(name="fails")
        async def afails(text: str) -> Any:
            """Fail."""
            await await_until(is_due, "the sibling")
            fails(text)

        return afails

    @tool("fails")
    @effect(name="fails")
    def fails_(text: str) -> Any:
        """Fail."""
        wait_until(is_due)
        fails(text)

    return fails_


async def abandon(
    saver: DurableSaver,
    drive: Drive,
    kind: Kind,
    tools: list[BaseTool],
    asked: AIMessage,
    **options: Any,
) -> None:
    """Let a run fail in its tools, once all of them have ended."""
    graph = build(kind, saver, Model(script=[asked]), tools, **options)
    with pytest.raises(ConnectionResetError):
        await drive.invoke(graph, say("go"), thread())
    await await_until(
        lambda: all(r.state not in ("issued", "claimed") for r in saver.effects.list()), "all effects to end"
    )


async def seen_after(
    saver: DurableSaver, drive: Drive, kind: Kind, tools: list[BaseTool], asked: AIMessage, **options: Any
) -> dict[str, ToolMessage]:
    """Send a new message; return the answers that the model saw."""
    model = Model(script=[asked, AIMessage("done")])
    result = await drive.invoke(build(kind, saver, model, tools, **options), say("and?"), thread())
    assert problem(model.seen[-1]) is None
    assert [m.id for m in result["messages"]][:-1] == [m.id for m in model.seen[-1]]
    again = saver.effects.heal(result["messages"])
    assert again.command is None
    assert list(again) == result["messages"]
    return answers(model.seen[-1])


async def test_an_exception_in_a_sibling(saver: DurableSaver, drive: Drive, kind: Kind, world: World) -> None:
    tools = [made(drive, charge(world)), fails_later(saver, drive)]
    asked = asking("charge", "fails")
    await abandon(saver, drive, kind, tools, asked)
    given = await seen_after(saver, drive, kind, tools, asked)
    assert given["call_charge"].content == "did a"
    assert given["call_fails"].status == "error"
    assert "may have taken place. Do not repeat it" in str(given["call_fails"].content)
    assert world.done == ["a"]


async def test_a_definite_failure_is_told(saver: DurableSaver, drive: Drive, kind: Kind) -> None:
    tools = [made(drive, fails, failed_on=ConnectionResetError)]
    await abandon(saver, drive, kind, tools, asking("fails"))
    given = await seen_after(saver, drive, kind, tools, asking("fails"))
    assert given["call_fails"].content == (
        "The call of fails did not take place: ConnectionResetError: no answer."
    )


async def test_a_tool_without_effect_is_not_said_to_have_not_run(saver: DurableSaver, drive: Drive) -> None:
    tools = [plain("looks"), made(drive, fails)]
    asked = asking("looks", "fails")
    await abandon(saver, drive, "node", tools, asked)
    given = await seen_after(saver, drive, "node", tools, asked)
    assert given["call_looks"].content == (
        "The call of looks has no recorded result. It is not known whether it ran."
    )


def plain(name: str, result: Any = None) -> BaseTool:
    def run(text: str) -> Any:
        """Run."""
        return result if result is not None else f"{name} {text}"

    async def arun(text: str) -> Any:
        """Run."""
        return run(text)

    return StructuredTool.from_function(run, arun, name=name)


async def test_a_cancelled_run(saver: DurableSaver, kind: Kind, world: World) -> None:
    drive = Drive(asynchronous=True)
    began = asyncio.Event()

    @tool
    @effect
    async def waits(text: str) -> str:
        """Wait."""
        began.set()
        await asyncio.sleep(600)
        return "late"

    tools: list[BaseTool] = [made(drive, charge(world)), waits]
    asked = asking("charge", "waits")
    running = asyncio.create_task(
        drive.invoke(build(kind, saver, Model(script=[asked]), tools), say("go"), thread())
    )
    await began.wait()
    await await_until(lambda: "completed" in {r.state for r in saver.effects.list()}, "the charge")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    given = await seen_after(saver, drive, kind, tools, asked)
    assert given["call_charge"].content == "did a"
    assert "may have taken place" in str(given["call_waits"].content)
    assert world.done == ["a"]


async def test_an_interrupt_that_a_new_message_abandons(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World
) -> None:
    def approves(text: str) -> Any:
        return interrupt("approve?")

    tools = [made(drive, charge(world)), made(drive, approves)]
    asked = asking("charge", "approves")
    await drive.invoke(build(kind, saver, Model(script=[asked]), tools), say("go"), thread())
    given = await seen_after(saver, drive, kind, tools, asked)
    assert given["call_charge"].content == "did a"
    assert given["call_approves"].status == "error"
    assert "stopped to wait for a human's answer, which did not come" in str(given["call_approves"].content)
    assert world.done == ["a"]


async def test_a_call_that_never_began_was_not_run(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World
) -> None:
    tools = [made(drive, charge(world))]
    asked = asking("charge")
    graph = build(kind, saver, Model(script=[asked]), tools)
    await drive.invoke(graph, say("go"), thread(), interrupt_before=["tools"])
    given = await seen_after(saver, drive, kind, tools, asked)
    assert (given["call_charge"].content, given["call_charge"].status) == (
        "The call of charge was not run.",
        "error",
    )
    assert world.done == []


# --- after a rollback, an update, on a fork ---


async def test_a_rollback_to_before_the_answer(
    saver: DurableSaver, conninfo: str, drive: Drive, kind: Kind, world: World
) -> None:
    """The newest checkpoints are deleted: the effect took place all the same."""
    tools = [made(drive, charge(world))]
    asked = asking("charge")
    graph = build(kind, saver, Model(script=[asked]), tools)
    await drive.invoke(graph, say("go"), thread())
    asking_id = checkpoint_id(next(s for s in await drive.history(graph, thread()) if "tools" in s.next))
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "DELETE FROM langgraph_durable.checkpoints c USING langgraph_durable.checkpoints kept "
            "WHERE kept.checkpoint_id = %s AND c.ulid > kept.ulid",
            [asking_id],
        )
        connection.execute("DELETE FROM langgraph_durable.writes")
    with DurableSaver.from_conn_string(conninfo) as fresh:
        given = await seen_after(fresh, drive, kind, tools, asked)
    assert given["call_charge"].content == "did a"
    assert world.done == ["a"]


@pytest.mark.parametrize("on_fork", ["replay", "new", "ask", "raise"])
async def test_update_state_back_to_before_the_answer(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World, on_fork: Any
) -> None:
    tools = [made(drive, charge(world), on_fork=on_fork)]
    asked = asking("charge")
    graph = build(kind, saver, Model(script=[asked]), tools)
    await drive.invoke(graph, say("go"), thread())
    before = next(s for s in await drive.history(graph, thread()) if "tools" in s.next)
    await drive.update(graph, before.config, {"messages": [HumanMessage("rather not")]}, "model")
    given = await seen_after(saver, drive, kind, tools, asked)
    if on_fork == "replay":
        assert given["call_charge"].content == "did a"
    else:
        assert given["call_charge"].status == "error"
        assert "was not run on this branch" in str(given["call_charge"].content)
    assert world.done == ["a"]


async def test_update_state_after_a_failure(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World
) -> None:
    """LangGraph applies the finished siblings' writes then: their answers are put in their place."""
    tools = [made(drive, charge(world)), fails_later(saver, drive)]
    asked = asking("fails", "charge")
    await abandon(saver, drive, kind, tools, asked)
    graph = build(kind, saver, Model(script=[asked]), tools)
    await drive.update(graph, thread(), {"messages": [HumanMessage("never mind")]})
    given = await seen_after(saver, drive, kind, tools, asked)
    assert given["call_charge"].content == "did a"
    assert "may have taken place" in str(given["call_fails"].content)


# --- beside middleware that makes answers up ---


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("before_model", [False, True], ids=["before agent", "before model"])
async def test_the_truth_replaces_answers_that_other_middleware_made_up(
    saver: DurableSaver, drive: Drive, world: World, where: str, before_model: bool
) -> None:
    patches = pytest.importorskip("tests.acceptance.patching", exc_type=ImportError)
    tools = [made(drive, charge(world)), fails_later(saver, drive)]
    asked = asking("charge", "fails", "gone")
    await abandon(saver, drive, "agent", tools, asked)
    model = Model(script=[asked, AIMessage("done")])
    others: Any = {where: [patches.patching(before_model=before_model)]}
    result = await drive.invoke(build("agent", saver, model, tools, **others), say("and?"), thread())
    assert problem(model.seen[-1]) is None
    given = answers(model.seen[-1])
    assert given["call_charge"].content == "did a"
    assert "may have taken place" in str(given["call_fails"].content)
    assert not any("cancelled" in str(m.content) for m in result["messages"])
    assert world.done == ["a"]


# --- what the provider or a human says ---


@pytest.mark.parametrize(
    ("finding", "says", "status"),
    [
        (Happened("receipt 1"), "receipt 1", "success"),
        (NotHappened(), "The call of fails did not take place.", "error"),
        (
            Undetermined(),
            "It is not known what became of the call of fails: it may have taken place. Do not repeat it.",
            "error",
        ),
    ],
)
async def test_an_open_effect_is_verified(
    saver: DurableSaver, drive: Drive, kind: Kind, finding: Any, says: str, status: str
) -> None:
    tools = [made(drive, fails, verify=lambda record: finding)]
    await abandon(saver, drive, kind, tools, asking("fails"))
    message = (await seen_after(saver, drive, kind, tools, asking("fails")))["call_fails"]
    assert (message.content, message.status) == (says, status)


async def test_a_verify_that_fails_is_no_answer(
    saver: DurableSaver, drive: Drive, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    def verify(record: Any) -> Any:
        raise OSError("the provider is down")

    tools = [made(drive, fails, verify=verify)]
    await abandon(saver, drive, kind, tools, asking("fails"))
    given = await seen_after(saver, drive, kind, tools, asking("fails"))
    assert "may have taken place" in str(given["call_fails"].content)
    assert "the provider is down" in caplog.text


@pytest.mark.parametrize(
    ("decision", "says", "status"),
    [
        ("happened", "as said", "success"),
        ("retry", "The call of fails did not take place.", "error"),
        ("failed", "The call of fails did not take place.", "error"),
        ("abandon", "a human decided to give it up", "error"),
    ],
)
async def test_a_human_is_asked(
    saver: DurableSaver, drive: Drive, kind: Kind, decision: str, says: str, status: str
) -> None:
    tools = [made(drive, fails, on_unknown="ask")]
    asked = asking("fails")
    await abandon(saver, drive, kind, tools, asked)
    model = Model(script=[asked, AIMessage("done")])
    graph = build(kind, saver, model, tools)
    await drive.invoke(graph, say("and?"), thread())
    [question] = interrupts(await drive.state(graph, thread()))
    assert model.seen == [], "the model is not asked before it is known"
    resume: Any = Command(resume={question.id: answer(question, decision, result="as said")})
    await drive.invoke(graph, resume, thread())
    message = answers(model.seen[-1])["call_fails"]
    assert says in str(message.content)
    assert message.status == status
    assert problem(model.seen[-1]) is None


# --- where the conversation is ---


async def test_an_agent_that_is_a_subgraph_with_its_own_memory(
    saver: DurableSaver, drive: Drive, kind: Kind, world: World
) -> None:
    tools = [made(drive, charge(world)), plain("looks"), fails_later(saver, drive)]
    asked = asking("charge", "looks", "fails")

    def nested(model: Model) -> Graph:
        agent: Any = build(kind, saver, model, tools, policies=READS, checkpointer=True)
        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        return builder.compile(checkpointer=saver)

    with pytest.raises(ConnectionResetError):
        await drive.invoke(nested(Model(script=[asked])), say("go"), thread())
    model = Model(script=[asked, AIMessage("done")])
    await drive.invoke(nested(model), say("and?"), thread())
    given = answers(model.seen[-1])
    assert problem(model.seen[-1]) is None
    assert given["call_charge"].content == "did a"
    assert "may have taken place" in str(given["call_fails"].content)
    if kind == "agent":
        assert given["call_looks"].content == "looks a"


READS = {"looks": READ_ONLY}


async def test_messages_in_a_delta_channel(saver: DurableSaver, drive: Drive, world: World) -> None:
    """Their values are replayed from writes, so an abandoned step's message is known by its call's id alone."""

    class State(TypedDict):
        messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]

    tools = [plain("looks"), fails_later(saver, drive), made(drive, charge(world))]
    asked = asking("looks", "fails", "charge").model_copy(update={"id": "m"})

    def fan_out(state: Any) -> Any:
        last = state["messages"][-1]
        if not isinstance(last, AIMessage) or not last.tool_calls:
            return END
        return [
            Send("tools", {"messages": [last.model_copy(update={"tool_calls": [c]})]})
            for c in last.tool_calls
        ]

    def graph(model: Model) -> Graph:
        async def aheal(state: Any) -> Any:
            return (await saver.effects.aheal(state["messages"], tools=tools)).command

        def heal(state: Any) -> Any:
            return saver.effects.heal(state["messages"], tools=tools).command

        builder = StateGraph(State)
        builder.add_node("heal", RunnableLambda(heal, aheal))
        builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        builder.add_node("tools", ToolNode(tools, handle_tool_errors=False))
        builder.add_edge(START, "heal")
        builder.add_edge("heal", "model")
        builder.add_conditional_edges("model", fan_out, ["tools", END])
        builder.add_edge("tools", "heal")
        return builder.compile(checkpointer=saver)

    with pytest.raises(ConnectionResetError):
        await drive.invoke(graph(Model(script=[asked])), say("go"), thread())
    model = Model(script=[asked, AIMessage("done")])
    result = await drive.invoke(graph(model), say("and?"), thread())
    given = answers(model.seen[-1])
    assert problem(model.seen[-1]) is None
    assert given["call_charge"].content == "did a"
    assert given["call_looks"].content == "looks a"
    state = await drive.state(graph(model), thread())
    assert state.values["messages"] == result["messages"]


def test_an_agent_without_a_checkpointer_says_that_nothing_is_recorded(saver: DurableSaver) -> None:
    def heal(state: MessagesState) -> Any:
        return saver.effects.heal(state["messages"]).command

    builder = StateGraph(MessagesState)
    builder.add_node("heal", heal)
    builder.add_edge(START, "heal")
    given = {"messages": [asking("a"), HumanMessage("?")]}
    found: Any = builder.compile().invoke(given)  # type: ignore[call-overload]
    assert (
        found["messages"][1].content
        == "The call of a has no recorded result. It is not known whether it ran."
    )


# --- policies ---


def test_a_decorated_tool_is_found_by_its_functions_name_if_there_is_one_such(saver: DurableSaver) -> None:
    @effect(verify=lambda record: Happened("found"))
    def pays_in_this_test(text: str) -> str:
        """Pay."""
        raise ConnectionResetError

    asked = asking("pays_in_this_test").model_copy(update={"id": "m"})
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [asked]})
    builder.add_node("tools", ToolNode([pays_in_this_test], handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph: Any = builder.compile(checkpointer=saver)
    with pytest.raises(ConnectionResetError):
        graph.invoke(say("go"), thread())
    assert saver.effects.heal([asked], thread())[-1].content == "found"


def test_functions_of_one_name_with_different_policies_are_not_guessed_from() -> None:
    @effect(name="shared_name", verify=lambda record: Happened(1))
    def one() -> None:
        """Do one thing."""

    @effect(name="shared_name", read_only=True)
    def other() -> None:
        """Do another thing."""

    default = EffectPolicy(wait_timeout=1)
    assert KnownTools(default=default).find("shared_name").policy is default
    assert KnownTools().find("shared_name").policy is None
    given = KnownTools([other], {"own": READ_ONLY}, default)
    assert given.find("own").policy is READ_ONLY
    one_tool = tool("shared_name")(one)
    given.add(one_tool)
    found = given.find("shared_name").policy
    assert found is not None
    assert found.verify is not None
