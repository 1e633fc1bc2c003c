"""The effects of the programs, as plain functions and as tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.prebuilt import InjectedState
from langgraph.types import interrupt
from pydantic import SecretStr

from langgraph_durable import EffectPolicy, Happened, NotHappened, effect
from langgraph_durable.effects import EffectRecord
from tests.property.effect_law.programs import INNER, Policy
from tests.property.effect_law.world import World

Function = Callable[..., Any]

LEASE = 0.3
_WAIT = 15.0
VERIFYING = ("verify",)


def policy_of(world: World) -> EffectPolicy:
    """Return the policy of a case's effects."""

    def verify(record: EffectRecord) -> Happened | NotHappened:
        sale = world.vendor.find(record.idempotency_key)
        return Happened(sale.text) if sale else NotHappened()

    given: Policy = world.case.policy
    return EffectPolicy(
        verify=verify if given.unknown in VERIFYING else None,
        on_unknown=given.unknown if given.unknown in ("ask", "retry") else "raise",
        idempotent=given.unknown == "idempotent",
        on_fork=given.on_fork,
        on_undelivered=given.on_undelivered,
        duplicate_window=given.duplicate_window,
        scope=given.scope,
        lease=LEASE,
        wait_timeout=_WAIT,
    )


def outer_policy(world: World) -> EffectPolicy:
    """Return the policy of effects that only call other effects: these are what must not be repeated."""
    return policy_of(world).replace(idempotent=True, verify=None)


def selling(world: World, name: str, *, asynchronous: bool, asks: str = "no") -> Function:
    """Return a function that orders something from the vendor."""

    def sell(item: str) -> str:
        if asks == "before":
            interrupt({"ask": item})
        text = world.sell(f"{name}:{item}")
        if asks == "after":
            interrupt({"ask": item})
        return text

    async def asell(item: str) -> str:
        if asks == "before":
            interrupt({"ask": item})
        text = await asyncio.to_thread(world.sell, f"{name}:{item}")
        if asks == "after":
            interrupt({"ask": item})
        return text

    return named(asell if asynchronous else sell, name)


def ordering(world: World, *, asynchronous: bool) -> Function:
    """Return a function that pays and notifies by inner effects."""
    policy = policy_of(world)
    notifier, _, whom = INNER.partition(":")
    pay = effect(policy=policy)(selling(world, "pay", asynchronous=asynchronous))
    notify = effect(policy=policy)(selling(world, notifier, asynchronous=asynchronous))

    def order(item: str) -> str:
        return f"did order:{item} ( {pay(item)} , {notify(whom)} )"

    async def aorder(item: str) -> str:
        return f"did order:{item} ( {await pay(item)} , {await notify(whom)} )"

    return named(aorder if asynchronous else order, "order")


def named(function: Function, name: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name.capitalize()} an item."
    return function


def plain_effects(world: World) -> dict[str, Function]:
    """Return the effects for plain nodes and tasks, by name."""
    asynchronous = world.case.asynchronous
    policy = policy_of(world)
    found = {
        name: effect(policy=policy)(selling(world, name, asynchronous=asynchronous))
        for name in ("pay", "refund")
    }
    found["order"] = effect(policy=outer_policy(world))(ordering(world, asynchronous=asynchronous))
    return found


def opaque_effect(world: World, argument: str) -> Function:
    """Return an effect whose arguments must be refused, because hashing hides or exhausts them."""

    def keep(item: SecretStr) -> str:
        return world.sell(f"pay:{item.get_secret_value()}")

    def mail(item: Iterable[str]) -> str:
        return world.sell(f"pay:{''.join(item)}")

    function: Function = keep if argument == "secret" else mail
    if not world.case.asynchronous:
        return effect(policy=policy_of(world))(function)

    async def act(item: Any) -> str:
        return str(await asyncio.to_thread(function, item))

    return effect(policy=policy_of(world))(act)


def tools_of(world: World, *, wrapped: bool, same_name: bool, asks: str) -> list[BaseTool]:
    """Return the tools of a model."""
    asynchronous = world.case.asynchronous
    policy = policy_of(world)
    tools: list[BaseTool] = [_look(world)]
    for name in ("pay", "refund", "order"):
        if name == "order":
            function = ordering(world, asynchronous=asynchronous)
        else:
            asking = asks if name == "pay" else "no"
            function = selling(world, name, asynchronous=asynchronous, asks=asking)
        if same_name:
            named(function, "act")
        if not wrapped:
            function = effect(policy=outer_policy(world) if name == "order" else policy)(function)
        tools.append(_tool(name, function, asynchronous))
    return tools


def _tool(name: str, function: Function, asynchronous: bool) -> BaseTool:
    if asynchronous:
        return StructuredTool.from_function(coroutine=function, name=name, description=name)
    return StructuredTool.from_function(function, name=name, description=name)


def _look(world: World) -> BaseTool:
    @tool
    def look(item: str) -> str:
        """Look an item up."""
        if world.is_first(f"look {item}"):
            raise RuntimeError("flaky")
        return f"did look:{item}"

    return look


def billing_tool(world: World) -> BaseTool:
    """Return a tool that bills a customer whom the state names."""
    policy = policy_of(world)
    if world.case.asynchronous:

        @tool("bill")
        @effect(policy=policy, name="bill")
        async def abill(item: str, customer: Annotated[str, InjectedState("customer")]) -> str:
            """Bill an item."""
            return await asyncio.to_thread(world.sell, f"bill:{item}-{customer}")

        return abill

    @tool("bill")
    @effect(policy=policy, name="bill")
    def bill(item: str, customer: Annotated[str, InjectedState("customer")]) -> str:
        """Bill an item."""
        return world.sell(f"bill:{item}-{customer}")

    return bill
