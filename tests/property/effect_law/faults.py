"""Faults that the law must find: each is restored by switching off what mends it.

`concerns` leaves out programs that cannot show a fault, to save time: the count of programs in what is printed includes
them. `seeds` are programs that found it, to be tried first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.property.effect_law import switches
from tests.property.effect_law.programs import Case, Flow, Node, Talk
from tests.property.effect_law.switches import Switch


@dataclass(frozen=True)
class RestoredFault:
    """A fault, and how to restore it in this process."""

    name: str
    what: str
    """What goes wrong then."""
    switches: tuple[Switch, ...]
    """What is switched off, all of it."""
    concerns: Callable[[Case], bool] = lambda case: True
    seeds: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise a LookupError if this version lacks something that would be switched off."""
        for switch in self.switches:
            switch.replacement_of(switch.find()[1])

    def restore(self) -> None:
        """Put the fault back into this process."""
        for switch in self.switches:
            switch.turn_off()


# --- which cases can show a fault ---


def _asks_after(case: Case) -> bool:
    return isinstance(case.program, Talk) and case.program.ask == "after"


def _chooses(case: Case) -> bool:
    return isinstance(case.program, Flow) and (case.program.ask or case.program.decide)


def _calls(case: Case) -> list[str]:
    if isinstance(case.program, Flow):
        return [call for nodes in case.program.steps for node in nodes for call in node.calls]
    return [wish for action in case.actions for wish in action.wishes]


def _has_inner_effects(case: Case) -> bool:
    """Return whether effects inside effects are called, and something else besides."""
    calls = _calls(case)
    return isinstance(case.program, (Flow, Talk)) and len(calls) > 1 and any("order:" in c for c in calls)


def _has_argument(kind: str) -> Callable[[Case], bool]:
    return lambda case: isinstance(case.program, Flow) and case.program.argument == kind


def _talks(case: Case, **fields: Any) -> bool:
    return isinstance(case.program, Talk) and all(getattr(case.program, n) == v for n, v in fields.items())


def _has_alike_calls_of_one_name(case: Case) -> bool:
    """Return whether tools are called with equal arguments whose functions have one name."""
    effects = {call for call in _calls(case) if not call.startswith("look:")}
    items = [call.partition(":")[2] for call in effects]
    return _talks(case, same_name=True) and len(set(items)) < len(items)


def _is_refused(case: Case) -> bool:
    faults = [action.fault for action in case.actions if action.fault is not None]
    return any(fault.kind == "refuse" and fault.after for fault in faults) and not case.policy.honours_keys


def _has_equal_calls_beside_others(case: Case) -> bool:
    """Return whether a step has several nodes, and one of them makes equal calls, which must be counted."""

    def repeats(node: Node) -> bool:
        return len(set(node.calls)) < len(node.calls)

    if not isinstance(case.program, Flow) or case.policy.scope != "call":
        return False
    return any(len(nodes) > 1 and any(map(repeats, nodes)) for nodes in case.program.steps)


_CANDIDATES = "_protocol.lineage:find_candidates"

FAULTS = (
    RestoredFault(
        "abandoned_steps",
        "what a step carried out before it was abandoned is forgotten, and a new message has it repeated",
        (Switch(_CANDIDATES, switches.without("UNDELIVERED")),),
        seeds=(11,),
    ),
    RestoredFault(
        "inner_counter",
        "effects inside effects are counted in their task, so a replayed outer effect shifts the next ones",
        (Switch("_protocol.keys:_outer_of", switches.always(None)),),
        _has_inner_effects,
        seeds=(19, 53),
    ),
    RestoredFault(
        "plain_forks",
        "a fork repeats what plain nodes and tasks did",
        (Switch(_CANDIDATES, switches.without("FORK")),),
        seeds=(4,),
    ),
    RestoredFault(
        "retried_graphs",
        "a retried node that is or calls a graph repeats what its first attempt paid",
        (
            Switch("_protocol.lineage:_place_params", switches.without_attempts),
            # A graph that failed is recognized by its error too.
            Switch("_storage.statements:FIND_FAMILY", switches.changed("w.channel = '__error__'", "false")),
            Switch(
                "_storage.statements:FIND_CANDIDATES", switches.changed("w.channel = '__error__'", "false")
            ),
        ),
        lambda case: _talks(case, retry="outer"),
        seeds=(113,),
    ),
    RestoredFault(
        "suspended_repeats",
        "a body that sent its request and then waited for a human runs again, and verify is not asked",
        (Switch("_protocol.attempt:EffectCall.resumes", lambda _: property(lambda call: True)),),
        _asks_after,
        seeds=(123,),
    ),
    RestoredFault(
        "refused_is_failed",
        "a refused connection counts as a proof that nothing happened, although verify could be asked",
        (Switch("_protocol.run:_state_after", switches.fails_when_refused),),
        _is_refused,
        seeds=(5,),
    ),
    RestoredFault(
        "pending_writes",
        "an effect begins before what chose its arguments is stored",
        (Switch("_protocol.barrier:_Barrier.await_writes", switches.async_nothing),),
        _chooses,
        seeds=(19,),
    ),
    RestoredFault(
        "transient_messages",
        "a message that no checkpoint has identifies its calls",
        (Switch("_protocol.keys:_is_stored", switches.always(True)),),
        lambda case: _talks(case, shape="one node"),
        seeds=(99,),
    ),
    RestoredFault(
        "one_message",
        "a message's id identifies its calls, however often it is carried out",
        (Switch("_protocol.lineage:needs_relation", switches.always(False)),),
        lambda case: not isinstance(case.program, Talk),
        seeds=(2,),
    ),
    RestoredFault(
        "bounded_counters",
        "the counters of tasks live in a cache that drops them",
        (Switch("_identity.execution:Executions.of", switches.forgetful),),
        _has_equal_calls_beside_others,
        seeds=(194, 161, 122),
    ),
    RestoredFault(
        "function_names",
        "tools whose functions have one name are one effect",
        (Switch("decorator:_EffectFunction._name_for", switches.by_function_name),),
        _has_alike_calls_of_one_name,
        seeds=(79,),
    ),
    RestoredFault(
        "hidden_arguments",
        "arguments that differ are hashed alike",
        (Switch("_identity.hashing:_require_transparent", switches.nothing),),
        _has_argument("secret"),
        seeds=(126,),
    ),
    RestoredFault(
        "consumed_iterators",
        "hashing an iterator leaves nothing of it for the body",
        (Switch("_identity.hashing:_require_transparent", switches.nothing),),
        _has_argument("iterator"),
        seeds=(17,),
    ),
    RestoredFault(
        "messages_without_ids",
        "calls of a message without an id are counted, so that each retry within the task is another call",
        (Switch("_protocol.keys:identify", switches.counting_calls_without_message_id),),
        lambda case: _talks(case, ids=False, retry="call"),
        seeds=(428,),
    ),
)
