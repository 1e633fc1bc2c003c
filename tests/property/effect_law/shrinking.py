"""Makes failing cases smaller, by dropping parts as long as they fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.property.effect_law.programs import Case, Fan, Flow, Loop, Node, Policy, Talk

_TRIES = 2
"""How often a smaller case runs before it counts as passing: some depend on the order of threads."""


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = 40.0) -> Case:
    """Return a smaller case that still fails, as small as the time allows."""
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            if time.monotonic() > deadline:
                return case
            if any(fails(candidate) for _ in range(_TRIES)):
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    plain = (("threads", 1), ("slow_writes", False), ("asynchronous", False), ("durability", "sync"))
    for position in range(1, len(case.actions)):
        yield replace(case, actions=case.actions[:position] + case.actions[position + 1 :])
    for name, value in plain:
        if getattr(case, name) != value:
            yield replace(case, **{name: value})  # type: ignore[arg-type]
    for position, action in enumerate(case.actions):
        kept = list(case.actions)
        changes: list[dict[str, object]] = []
        if action.fault is not None:
            changes.append({"fault": None})
        if not action.answer:
            changes.append({"answer": True})
        for drop in range(len(action.wishes) if len(action.wishes) > 1 or position else 0):
            changes.append({"wishes": action.wishes[:drop] + action.wishes[drop + 1 :]})
        for change in changes:
            kept[position] = replace(action, **change)  # type: ignore[arg-type]
            yield replace(case, actions=tuple(kept))
    for program in _smaller_programs(case):
        yield replace(case, program=program)
    if case.policy.unknown != "verify":
        yield replace(case, policy=replace(case.policy, unknown="verify"))
    if case.policy.scope != "call":
        yield replace(case, policy=Policy(case.policy.unknown, case.policy.on_fork, "call"))


def _smaller_programs(case: Case) -> Iterator[Talk | Flow | Fan | Loop]:
    program = case.program
    if isinstance(program, Talk):
        for name, value in (
            ("serial", False),
            ("ids", True),
            ("errors", False),
            ("retry", "no"),
            ("ask", "no"),
        ):
            if getattr(program, name) != value:
                yield replace(program, **{name: value})  # type: ignore[arg-type]
        if program.same_name:
            yield replace(program, same_name=False)
    elif isinstance(program, Flow):
        yield from _smaller_flows(program)
    elif (isinstance(program, Fan) and len(program.items) > 1) or (
        isinstance(program, Loop) and len(program.items) > 1
    ):
        yield replace(program, items=program.items[:1])


def _smaller_flows(flow: Flow) -> Iterator[Flow]:
    for name in ("retry", "ask", "decide", "per_run"):
        if getattr(flow, name):
            yield replace(flow, **{name: False})  # type: ignore[arg-type]
    if len(flow.steps) > 1:
        for position in range(len(flow.steps)):
            yield replace(flow, steps=flow.steps[:position] + flow.steps[position + 1 :])
    for i, nodes in enumerate(flow.steps):
        if len(nodes) > 1:
            for j in range(len(nodes)):
                yield _with_step(flow, i, nodes[:j] + nodes[j + 1 :])
        for j, node in enumerate(nodes):
            for made in _smaller_nodes(node):
                yield _with_step(flow, i, (*nodes[:j], made, *nodes[j + 1 :]))


def _with_step(flow: Flow, position: int, nodes: tuple[Node, ...]) -> Flow:
    return replace(flow, steps=(*flow.steps[:position], nodes, *flow.steps[position + 1 :]))


def _smaller_nodes(node: Node) -> Iterator[Node]:
    if node.parallel:
        yield replace(node, parallel=False)
    if node.fails_before is not None:
        yield replace(node, fails_before=None)
    elif len(node.calls) > 1:
        for position in range(len(node.calls)):
            yield replace(node, calls=node.calls[:position] + node.calls[position + 1 :])
