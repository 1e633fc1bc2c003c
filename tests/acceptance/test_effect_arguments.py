"""The arguments of effects: which are compared and recorded, and that deploys may add optional ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from pydantic import BaseModel, Field

from langgraph_durable import DurableSaver, EffectPolicy, Happened, effect
from langgraph_durable.errors import EffectConflictError, EffectError, InvalidConfigError
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_graphs import World, calls, told
from tests.acceptance.graphs import Graph

pytestmark = pytest.mark.context

Cents = Annotated[int, InjectedState("cents")]
Shop = Annotated[dict[str, Any], InjectedState]
Runs = ToolRuntime


class Order(MessagesState):
    cents: int


def tools_of(saver: Any, acts: Sequence[BaseTool], state: Any = MessagesState, **node: Any) -> Graph:
    builder = StateGraph(state)
    builder.add_node("tools", ToolNode(acts, handle_tool_errors=False, **node))
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=saver)


def guard(saver: DurableSaver, how: str) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Return how the body of a tool becomes an effect: a decorator, and options of the ToolNode."""
    if how == "decorated":
        return effect(failed_on=ConnectionError), {}
    wrapper = saver.effects.tool_wrapper(default=EffectPolicy(failed_on=ConnectionError))
    return lambda body: body, {
        "wrap_tool_call": wrapper.wrap_tool_call,
        "awrap_tool_call": wrapper.awrap_tool_call,
    }


GUARDS = pytest.mark.parametrize("how", ["decorated", "wrapped"])


# --- optional arguments ---


@GUARDS
@pytest.mark.parametrize("pending", [False, True], ids=["completed", "unknown"])
async def test_a_deploy_may_add_optional_arguments(
    saver: DurableSaver, drive: Drive, world: World, how: str, pending: bool
) -> None:
    decorate, node = guard(saver, how)

    def before(text: str) -> str:
        """Do it."""
        return world(text)

    def after(text: str, currency: str = "eur", tags: list[str] = []) -> str:  # noqa: B006 (never changed)
        """Do it."""
        return world(f"{text} {currency} {tags}")

    world.trouble = [TimeoutError("no answer")] if pending else []
    given = {"messages": [calls(("act", "a", "1"))]}
    old = tools_of(saver, [tool("act")(decorate(before))], **node)
    new = tools_of(saver, [tool("act")(decorate(after))], **node)
    if pending:
        with pytest.raises(TimeoutError):
            await drive.invoke(old, given, thread())
        [record] = saver.effects.pending()
        saver.effects.resolve(record.effect_id, Happened("found"))
    else:
        await drive.invoke(old, given, thread())
    start = next(s for s in await drive.history(old, thread()) if s.next)
    assert told(await drive.invoke(new, None, start.config)) == ["found" if pending else "did a"]
    assert world.done == ["a"]


@GUARDS
async def test_an_argument_equal_to_its_default_counts_as_left_out(
    saver: DurableSaver, drive: Drive, world: World, how: str
) -> None:
    """But the record has it, because `verify` and humans read that."""
    decorate, node = guard(saver, how)
    seen: list[str] = []

    def act(text: str, currency: str = "eur") -> str:
        """Do it."""
        seen.append(currency)
        if len(seen) == 1:
            raise ConnectionError("refused by the provider")
        return world(text)

    graph = tools_of(saver, [tool(decorate(act))], **node)

    async def ask(**args: Any) -> Any:
        message = AIMessage("", id="m", tool_calls=[ToolCall(name="act", args=args, id="1")])
        return await drive.invoke(graph, {"messages": [message]}, thread())

    with pytest.raises(ConnectionError, match="refused"):
        await ask(text="a")
    with pytest.raises(EffectConflictError):
        await ask(text="a", currency="usd")
    await ask(text="a", currency="eur")
    [record] = saver.effects.list()
    assert (record.state, record.attempts) == ("completed", 2)
    assert record.args == {"text": "a", "currency": "eur"}
    assert seen == ["eur", "eur"]


# --- injected arguments ---


@GUARDS
async def test_injected_values_are_compared_and_recorded(
    saver: DurableSaver, drive: Drive, world: World, how: str
) -> None:
    decorate, node = guard(saver, how)

    @tool
    @decorate
    def charge(
        text: str,
        cents: Cents,
        messages: Annotated[list[Any], InjectedState("messages")],
        shop: Shop,
        secret: Annotated[str, InjectedToolArg] = "none",
    ) -> str:
        """Do it."""
        assert shop["cents"] == cents
        assert messages
        return world(f"{text} {cents}")

    graph = tools_of(saver, [charge], Order, **node)
    message = calls(("charge", "a", "1"))
    await drive.invoke(graph, {"messages": [message], "cents": 5}, thread())
    [record] = saver.effects.list()
    assert record.args is not None
    assert {n: record.args.get(n) for n in ("text", "cents")} == {"text": "a", "cents": 5}
    assert not record.args.keys() & {"messages", "shop", "effect_runtime"}
    start = next(s for s in await drive.history(graph, thread()) if s.next)
    fork = await drive.update(graph, start.config, {"cents": 500}, as_node="__start__")
    with pytest.raises(EffectConflictError):
        await drive.invoke(graph, None, fork)
    assert world.done == ["a 5"]


async def test_a_model_cannot_forge_an_injected_value(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    _, node = guard(saver, "wrapped")

    @tool
    def charge(text: str, cents: Cents) -> str:
        """Do it."""
        return world(f"{text} {cents}")

    forged = ToolCall(name="charge", args={"text": "a", "cents": 1}, id="1")
    given = {"messages": [AIMessage("", tool_calls=[forged])], "cents": 5}
    await drive.invoke(tools_of(saver, [charge], Order, **node), given, thread())
    [record] = saver.effects.list()
    assert record.args == {"text": "a", "cents": 5}
    assert world.done == ["a 5"]


async def test_aliases_of_injected_types_are_resolved(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """With `from __future__ import annotations`, they are text in which nothing says that they are injected."""

    @tool
    @effect()
    def act(text: str, shop: Shop, rt: Runs) -> str:
        """Do it."""
        assert rt.tool_call_id == "1"
        return world(f"{text} {shop['cents']}")

    given = {"messages": [calls(("act", "a", "1"))], "cents": 5}
    assert told(await drive.invoke(tools_of(saver, [act], Order), given, thread())) == ["did a 5"]
    [record] = saver.effects.list()
    assert (record.args, record.tool_call_id) == ({"text": "a"}, "1")


async def test_a_key_gets_an_injected_value_only_if_it_asks_for_it(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    keys: dict[str, Callable[..., str]] = {
        "one": lambda text: text,
        "other": lambda text, cents: f"{text} {cents}",
    }

    def make(name: str) -> BaseTool:
        @tool(name)
        @effect(key=keys[name])
        def act(text: str, cents: Cents) -> str:
            """Do it."""
            return world(f"{name} {text} {cents}")

        return act

    graph = tools_of(saver, [make("one"), make("other")], Order)
    for number, cents in enumerate([5, 5]):
        script = calls(("one", "a", "1"), ("other", "a", "2"))
        await drive.invoke(graph, {"messages": [script], "cents": cents}, thread(str(number)))
    assert sorted(world.done) == ["one a 5", "other a 5"]


class Modelled(BaseModel):
    messages: Annotated[list[Any], add_messages] = Field(default_factory=list)


async def test_a_state_that_is_a_model_causes_no_warnings(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """Warnings are errors in these tests."""

    @tool
    @effect()
    def act(text: str) -> str:
        """Do it."""
        return world(text)

    graph = tools_of(saver, [act], Modelled)
    assert told(await drive.invoke(graph, {"messages": [calls(("act", "a", "1"))]}, thread())) == ["did a"]
    [record] = saver.effects.list()
    assert (record.args, record.tool_call_id) == ({"text": "a"}, "1")


# --- what can be decorated ---


@pytest.mark.parametrize("scope", ["step", "thread", "global"])
def test_a_method_needs_a_key_where_arguments_identify_it(scope: Any) -> None:
    with pytest.raises(InvalidConfigError, match="key="):

        class Shop:
            @effect(scope=scope)
            def charge(self, cents: int) -> None: ...

    class Named:
        @effect(scope=scope, key="k")
        def charge(self, cents: int) -> None: ...


def test_a_tool_or_a_class_cannot_be_decorated() -> None:
    def act(text: str) -> str:
        """Do it."""
        return text

    with pytest.raises(TypeError, match="under @tool"):
        effect(tool(act))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Decorate its method"):
        effect(World)


async def test_partials_and_callable_objects_can_be_decorated(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def pay(currency: str, text: str) -> str:
        """Do it."""
        return world(f"{currency} {text}")

    async def apay(currency: str, text: str) -> str:
        return world(f"{currency} {text}")

    class Pay:
        """Do it."""

        def __call__(self, text: str) -> str:
            return world(f"object {text}")

    class APay:
        async def __call__(self, text: str) -> str:
            return world(f"object {text}")

    with pytest.raises(TypeError, match="needs a name="):
        effect(Pay())
    first = effect(name="euros")(functools.partial(pay, "eur"))
    afirst = effect(name="euros")(functools.partial(apay, "eur"))
    second, asecond = effect(name="object")(Pay()), effect(name="object")(APay())
    acts = [
        StructuredTool.from_function(sync, coroutine, name=name, description="Do it.")
        for name, sync, coroutine in (("euros", first, afirst), ("object", second, asecond))
    ]
    script = calls(("euros", "a", "1"), ("object", "a", "2"))
    result = await drive.invoke(tools_of(saver, acts), {"messages": [script]}, thread())
    assert told(result) == ["did eur a", "did object a"]
    assert {record.tool for record in saver.effects.list()} == {"euros", "object"}


def test_a_block_whose_arguments_cannot_be_hashed_says_to_leave_them_out(saver: DurableSaver) -> None:
    """It has a key already."""
    with (
        pytest.raises(EffectError, match=r"plain data.*leave them out of args="),
        saver.effects.effect("pay", key="k", args={"to": iter(["ann"])}),
    ):
        pytest.fail("it ran")
