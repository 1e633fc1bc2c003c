"""Random cases. What is left out, because what is wanted then is a matter of opinion, is listed in the package."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.property.effect_law.programs import (
    AGENTS,
    NESTED,
    Action,
    Case,
    Fan,
    Fault,
    Flow,
    Loop,
    Node,
    Policy,
    Program,
    Talk,
)

_ITEMS = ("tea", "ink", "rope")


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    program = _program(rng)
    policy = _policy(rng, program)
    forks = policy.on_fork != "replay"
    if forks and isinstance(program, Flow) and not program.retry:
        program = replace(program, steps=tuple(tuple(map(_without_failure, step)) for step in program.steps))
    case = Case(
        program,
        policy,
        _forking(rng) if forks else _actions(rng, program, policy),
        asynchronous=rng.random() < 0.4,
        durability=rng.choice(("sync", "async", "async")),
        threads=rng.choice((1, 1, 1, 1, 2)),
        slow_writes=rng.random() < 0.15,
        seed=seed,
    )
    return replace(case, policy=_strict(rng, case))


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


# --- programs ---


def _program(rng: random.Random) -> Program:
    made = rng.choices((_talk, _flow, _fan, _loop), (50, 36, 7, 7))[0]
    return made(rng)


def _talk(rng: random.Random) -> Talk:
    shape: Any = rng.choice(
        ("graph", "graph", "send", "one node", "subgraph", "called", "agent", "wrapped", "nested agent")
    )
    retry: Any = "no"
    if _chance(rng, 0.4):
        retry = "outer" if shape in NESTED else "tools"
    if retry == "tools" and shape in AGENTS:
        retry = "no"
    if shape in ("graph", "send") and _chance(rng, 0.25):
        retry = "call"
    errors = shape in ("graph", "send") and retry == "no" and _chance(rng, 0.2)
    return Talk(
        shape,
        serial=_chance(rng, 0.25),
        ids=shape in ("subgraph", "one node", *AGENTS) or _chance(rng, 0.75),
        errors=errors,
        retry=retry,
        ask=rng.choice(("no", "no", "no", "before", "after")) if not errors else "no",
        same_name=_chance(rng, 0.25),
    )


def _flow(rng: random.Random) -> Flow:
    steps = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        steps.append(tuple(_node(rng) for _ in range(rng.choice((1, 1, 2)))))
    chooses = rng.choice(("ask", "decide", None, None, None, None))
    argument: Any = rng.choices(("plain", "secret", "iterator"), (86, 7, 7))[0]
    return Flow(
        functional=_chance(rng, 0.4),
        steps=tuple(steps),
        retry=_chance(rng, 0.5),
        ask=chooses == "ask",
        decide=chooses == "decide",
        per_run=_chance(rng, 0.3),
        argument=argument,
    )


def _node(rng: random.Random) -> Node:
    calls = tuple(_wish(rng, ("pay", "pay", "order", "refund")) for _ in range(rng.choice((1, 2, 2, 3))))
    fails = rng.randint(0, len(calls)) if _chance(rng, 0.4) else None
    parallel = len(calls) > 1 and fails in (None, len(calls)) and _chance(rng, 0.3)
    return Node(calls, parallel, fails)


def _without_failure(node: Node) -> Node:
    """Return a node that does not crash: whether a branch that crashed counts is a matter of opinion."""
    return replace(node, fails_before=None)


def _fan(rng: random.Random) -> Fan:
    customers = tuple(rng.choice(("ann", "bob", "eve")) for _ in range(rng.choice((2, 3))))
    return Fan(customers, tuple(rng.choice(_ITEMS) for _ in range(rng.choice((1, 2)))))


def _loop(rng: random.Random) -> Loop:
    return Loop(rng.choice((2, 3)), tuple(rng.choice(_ITEMS) for _ in range(rng.choice((1, 2)))))


def _wish(rng: random.Random, tools: tuple[str, ...]) -> str:
    return f"{rng.choice(tools)}:{rng.choice(_ITEMS[:2])}"


def _wishes(rng: random.Random) -> tuple[str, ...]:
    tools = ("pay", "pay", "pay", "refund", "order", "look")
    return tuple(_wish(rng, tools) for _ in range(rng.choice((1, 2, 2, 3))))


# --- policies ---


def _policy(rng: random.Random, program: Program) -> Policy:
    kinds = ["verify", "verify", "verify", "ask", "raise", "retry", "idempotent"]
    if isinstance(program, Talk) and (program.errors or program.ask == "after"):
        kinds = ["verify", "retry"] if program.ask == "after" else ["verify"]
    unknown: Any = rng.choice(kinds)
    scope: Any = "thread" if _chance(rng, 0.12) else "call"
    if isinstance(program, Flow) and program.argument == "secret":
        scope = "thread"  # where only arguments identify the call
    on_fork: Any = rng.choices(("replay", "new", "raise"), (90, 5, 5))[0]
    if scope == "thread":
        on_fork = "replay"
    chooses = isinstance(program, Flow) and (program.ask or program.decide)
    if chooses or (isinstance(program, Talk) and (program.ask != "no" or program.errors)):
        on_fork = "replay"
    honours = unknown in ("retry", "idempotent") or _chance(rng, 0.2)
    return Policy(unknown, on_fork, scope, honours)


def _strict(rng: random.Random, case: Case) -> Policy:
    """Return a case's policy, now and then with another choice about what abandoned steps did."""
    policy, program = case.policy, case.program
    turns_errors_into_messages = isinstance(program, Talk) and program.errors
    if not _chance(rng, 0.12) or policy.scope != "call" or policy.on_fork != "replay":
        return policy
    choice: Any = rng.choice(("replay", "ask", "raise"))
    window = rng.choice((86_400.0, 0.0, None))
    strict = replace(policy, on_undelivered=choice, duplicate_window=window)
    return policy if strict.stops_duplicates and turns_errors_into_messages else strict


# --- histories ---


def _fault(rng: random.Random, policy: Policy) -> Fault:
    if _chance(rng, 0.35):
        return Fault("kill", "database", rng.randint(1, 30), _chance(rng, 0.5))
    kind: Any = rng.choices(("kill", "lose", "refuse"), (70, 20, 10))[0]
    if kind == "refuse" and policy.unknown != "verify":
        kind = "lose"
    return Fault(kind, "vendor", rng.choice((1, 1, 2, 2, 3, 4)), _chance(rng, 0.6), _chance(rng, 0.5))


def _actions(rng: random.Random, program: Program, policy: Policy) -> tuple[Action, ...]:
    """Return an input that mostly fails, and some ways to go on."""
    first = _wishes(rng)
    actions = [Action("input", first, fault=_fault(rng, policy) if _chance(rng, 0.8) else None)]
    if isinstance(program, Flow) and (program.ask or program.decide):
        # Who is asked again elsewhere decides otherwise, and that is another order.
        return (actions[0], *(Action("resume", fault=_fault(rng, policy)) for _ in range(rng.choice((1, 2)))))
    kinds = (
        ["resume"] * 5 + ["again"] * 2 + ["input"] * 3 + ["update"] * 2 + ["bulk", "pin", "travel", "fork"]
    )
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind: Any = rng.choice(kinds)
        wishes = _wishes(rng) if kind == "input" and _chance(rng, 0.6) else ()
        fault = _fault(rng, policy) if _chance(rng, 0.35) else None
        actions.append(Action(kind, wishes, rng.choice((1, 2, 3, 4)), fault, answer=_chance(rng, 0.8)))
    return tuple(actions)


def _forking(rng: random.Random) -> tuple[Action, ...]:
    """Return an input and forks, without faults: a policy that is not "replay" makes each branch count."""
    actions = [Action("input", _wishes(rng))]
    for _ in range(rng.choice((1, 2))):
        kind: Any = rng.choice(("travel", "fork"))
        actions.append(Action(kind, back=rng.choice((1, 2, 3, 4))))
    return tuple(actions)
