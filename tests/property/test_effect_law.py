"""Random programs with random histories have each effect happen as often as it is wanted; tests/property/effect_law.

Fails with the seed and the program: `python -m tests.property.effect_law SEED --shrink` runs it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.property.effect_law import switches
from tests.property.effect_law.faults import FAULTS, RestoredFault
from tests.property.effect_law.generator import case_of
from tests.property.effect_law.model import ask, dangling_calls
from tests.property.effect_law.oracle import wanted_by_input
from tests.property.effect_law.programs import Action, Case, Fan, Fault, Flow, Loop, Node, Policy, Talk
from tests.property.effect_law.shrinking import shrink
from tests.property.effect_law.switches import Switch

PROGRAMS = int(os.environ.get("DURABLE_EXAMPLES", "200"))
ROOT = Path(__file__).parents[2]


def run_law(server: str, *arguments: str) -> str:
    """Run the law in a separate process, because it forks and this one has threads; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.effect_law", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_effect_happens_as_often_as_it_is_wanted(conninfo: str) -> None:
    run_law(conninfo, "--programs", str(PROGRAMS), "--shrink")


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_law_finds_restored_faults(conninfo: str, fault: str) -> None:
    if PROGRAMS < 2000:
        pytest.skip("restored faults are looked for in the nightly form: DURABLE_EXAMPLES=3000")
    run_law(conninfo, "--restore", fault, "--programs", "2000")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_can_be_restored_in_this_version(fault: RestoredFault) -> None:
    fault.check()
    assert fault.seeds
    assert all(fault.concerns(case_of(seed)) for seed in fault.seeds)


def test_what_is_not_there_cannot_be_switched_off() -> None:
    for target in ("_lineage:find_candidate", "_lineages:find_candidates", "_attempt:EffectCall.resume"):
        with pytest.raises(LookupError, match="cannot be switched off"):
            Switch(target, switches.nothing).turn_off()
    with pytest.raises(LookupError, match="cannot be switched off"):
        Switch("_statements:CLAIM", switches.changed("SELECT nothing", "")).turn_off()
    with pytest.raises(LookupError):
        switches.without("NEPHEW")


def test_unanswered_calls_are_seen() -> None:
    call = {"name": "pay", "args": {}, "id": "1"}
    ai, answer = AIMessage("", tool_calls=[call]), ToolMessage("paid", tool_call_id="1")
    assert dangling_calls([ai, answer]) == []
    assert dangling_calls([ai]) == dangling_calls([ai, HumanMessage("hi"), answer]) == ["1"]


def test_a_printed_case_is_the_case() -> None:
    known = {c.__name__: c for c in (Action, Case, Fan, Fault, Flow, Loop, Node, Policy, Talk)}
    for seed in range(200):
        case = case_of(seed)
        assert eval(repr(case), known) == case == case_of(seed)


def test_generator_has_all_kinds() -> None:
    cases = [case_of(seed) for seed in range(1000)]
    talks = [case.program for case in cases if isinstance(case.program, Talk)]
    assert len({talk.shape for talk in talks}) == 8
    assert {type(case.program) for case in cases} == {Talk, Flow, Fan, Loop}
    assert {action.kind for case in cases for action in case.actions} == {
        *("input", "again", "resume", "update", "bulk", "pin", "travel", "fork")
    }
    assert {case.policy.on_fork for case in cases} == {"replay", "new", "raise"}
    assert {case.policy.on_undelivered for case in cases} == {"replay", "ask", "raise"}
    assert {case.policy.duplicate_window for case in cases} == {86_400.0, 0.0, None}
    assert {case.policy.unknown for case in cases} == {"verify", "ask", "raise", "retry", "idempotent"}


def test_oracle_wants_what_is_repeated_unanswered_once() -> None:
    case = Case(Talk("graph"), Policy(), ())
    values: dict[str, list[Any]] = {"messages": []}
    once = wanted_by_input(case, values, ("pay:tea",), 0)
    assert once == {"pay:tea": 1}
    again = wanted_by_input(case, {"messages": [ask(("pay:tea",))]}, ("pay:tea",), 0)
    assert again == {"pay:tea": 1}


def test_shrinking_keeps_what_fails() -> None:
    case = next(case_of(seed) for seed in range(1000) if len(case_of(seed).actions) == 4)

    def fails(candidate: Case) -> bool:
        return any(action.fault == case.actions[-1].fault for action in candidate.actions)

    smallest = shrink(case, fails)
    assert fails(smallest)
    assert len(smallest.actions) < len(case.actions) or smallest == replace(case, actions=smallest.actions)
