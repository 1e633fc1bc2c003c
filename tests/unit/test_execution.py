"""What the executions of one task share, and what each has for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.pregel._algo import LazyAtomicCounter

from langgraph_durable.effects._identity.execution import Calls, Executions


def scratchpad(*answers: Any) -> PregelScratchpad:
    return PregelScratchpad(
        step=1,
        stop=2,
        call_counter=LazyAtomicCounter(),
        interrupt_counter=LazyAtomicCounter(),
        get_null_resume=lambda consume: None,
        resume=list(answers),
        subgraph_counter=LazyAtomicCounter(),
    )


def test_a_retry_counts_afresh_but_keeps_the_answers() -> None:
    executions = Executions()
    pad = scratchpad("ours", "the tool's")
    first = executions.of(pad, None)
    assert executions.of(pad, None) is first
    assert [first.calls.count("pay"), first.calls.count("pay")] == [0, 1]
    assert first.take_answers(lambda answer: answer == "ours") == ["ours"]
    # As LangGraph does before it runs a node again.
    second = executions.of(replace(pad, interrupt_counter=LazyAtomicCounter()), None)
    assert second is not first
    assert second.calls.count("pay") == 0
    assert second.take_answers(lambda answer: answer == "ours") == ["ours"]
    assert pad.resume == ["the tool's"]


def test_other_tasks_have_other_executions() -> None:
    executions = Executions()
    pads = [scratchpad(), scratchpad()]
    assert executions.of(pads[0], None) is not executions.of(pads[1], None)
    assert len(executions) == 2
    pads.clear()
    assert len(executions) == 0


def test_a_source_that_comes_again_has_the_same_number() -> None:
    calls = Calls()
    sources = [object(), object()]
    numbers = [calls.number("pay", source, 0) for source in (*sources, *sources)]
    assert numbers == [0, 1, 0, 1]
    assert calls.number("pay", sources[0], 1) == 2
    assert calls.count("pay") == 3
