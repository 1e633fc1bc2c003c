"""Questions to humans about effects, and the effect of their answers."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver, EffectError, Happened, NotHappened, Undetermined
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.rows import Transition
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import (
    GIVEN,
    World,
    agent,
    answer,
    calls,
    made,
    remind,
    requesting_twice,
    states,
    told,
)
from tests.acceptance.graphs import Graph

pytestmark = pytest.mark.context


async def test_a_question_about_an_effect_does_not_shift_the_tools_answers(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def remind(text: str) -> Any:
        said = [interrupt("first?")]
        if len(world.done) == 0:
            world(text)
        said.append(interrupt("second?"))
        return world(f"{text} {said}")

    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind, on_unknown="ask")], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, Command(resume="1"), thread())
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    assert asked.value["tool"] == "remind"
    assert asked.value["args"] == {"text": "a"}
    assert asked.value["attempts"] == 2
    await drive.invoke(graph, Command(resume=answer(asked, "retry")), thread())
    [own] = interrupts(await drive.state(graph, thread()))
    assert own.value == "second?", "the first one has its answer"
    result = await drive.invoke(graph, Command(resume="2"), thread())
    assert told(result) == ["did a ['1', '2']"]
    assert world.done == ["a", "a ['1', '2']"]


FAILED = "The call of remind did not take place, and a human decided that it is not to be tried again."
ABANDONED = (
    "It is not known whether the call of remind took place, and a human decided to give it up. "
    "Do not repeat it."
)


@pytest.mark.parametrize(
    ("decision", "done", "says"),
    [
        ("happened", ["a"], "as said"),
        ("not_happened", ["a", "a"], "did a"),
        ("retry", ["a", "a"], "did a"),
        (
            "failed",
            ["a"],
            "The call of remind did not take place, and a human decided that it is not to be tried again.",
        ),
        (
            "abandon",
            ["a"],
            "It is not known whether the call of remind took place, and a human decided to give it up. Do not repeat "
            "it.",
        ),
    ],
)
async def test_each_decision_of_a_human_is_carried_out(
    saver: DurableSaver, drive: Drive, world: World, decision: str, done: list[str], says: str
) -> None:
    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    resume: Command[Any] = Command(resume=answer(asked, decision, result="as said", note="a note"))
    assert told(await drive.invoke(graph, resume, thread())) == [says]
    assert world.done == done
    log = saver.effects
    [record] = log.list()
    reasons = [event.reason for event in log.history(record.effect_id)]
    assert f"{decision}: a note" in reasons


@pytest.mark.parametrize(
    "wrong",
    [
        "yes",
        3,
        ["happened"],
        {},
        {"decision": "happened"},
        {"decision": "maybe"},
        {"effect": "x", "decision": "retry"},
    ],
    ids=repr,
)
async def test_malformed_answers_are_asked_again(
    saver: DurableSaver, drive: Drive, world: World, wrong: Any
) -> None:
    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    await drive.invoke(graph, None, thread())
    for _ in range(2):
        if isinstance(wrong, dict) and wrong.get("decision") == "maybe":
            [asked] = interrupts(await drive.state(graph, thread()))
            wrong["effect"] = asked.value["effect"]
        # By the interrupt's id: an empty answer to whatever was asked is none.
        [asked] = interrupts(await drive.state(graph, thread()))
        await drive.invoke(graph, Command(resume={asked.id: wrong}), thread())
        [asked] = interrupts(await drive.state(graph, thread()))
        assert "the answer must" in asked.value["problem"]
        assert states(saver) == ["unknown"]
    result = await drive.invoke(graph, Command(resume=answer(asked, "happened", result="ok")), thread())
    assert told(result) == ["ok"]
    assert world.done == ["a"]


async def test_an_answer_decides_the_effect_that_it_names(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def remind(text: str) -> Any:
        world(text)
        raise TimeoutError

    graph = agent(
        saver,
        [made(drive, remind, on_unknown="ask", lease=timedelta(seconds=1))],
        calls(("remind", "a", "1"), ("remind", "b", "2")),
        apart=True,
    )
    config = thread()
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, config, durability="sync")
    # The first to fail may have kept the other from starting, or from telling how it ended, or even that it began.
    while states(saver) != ["unknown", "unknown"]:
        with suppress(TimeoutError, EffectError):
            await drive.invoke(graph, None, config, durability="sync")
    await drive.invoke(graph, None, config)
    asked = {i.value["args"]["text"]: i for i in interrupts(await drive.state(graph, config))}
    assert sorted(asked) == ["a", "b"]
    about_b = answer(asked["b"], "happened", result="b it was")
    await drive.invoke(graph, Command(resume={asked["a"].id: about_b}), config)
    again = {i.value["args"]["text"]: i for i in interrupts(await drive.state(graph, config))}
    assert "that answer was for effect" in again["a"].value["problem"]
    assert sorted(states(saver)) == ["completed", "unknown"]
    about_a = answer(again["a"], "happened", result="a it was")
    result = await drive.invoke(graph, Command(resume={again["a"].id: about_a}), config)
    assert sorted(told(result)) == ["a it was", "b it was"]
    assert len(set(world.done)) == len(world.done), "none of them twice"


async def test_a_graph_continues_after_a_decision_out_of_band(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    await drive.invoke(graph, None, thread())
    log = saver.effects
    [pending] = log.pending("thread")
    log.resolve(pending.effect_id, Happened("seen"), actor="ann")
    assert told(await drive.invoke(graph, None, thread())) == ["seen"]
    assert world.done == ["a"]


async def test_a_decision_out_of_band_leaves_the_tools_answers_in_place(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def remind(text: str) -> Any:
        return world(f"{text} {interrupt('first?')} {interrupt('second?')}") if world.done else world(text)

    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind, on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    await drive.invoke(graph, None, thread())
    log = saver.effects
    log.resolve(log.pending()[0].effect_id, NotHappened())
    await drive.invoke(graph, None, thread())
    for said in ("one", "two"):
        result = await drive.invoke(graph, Command(resume=said), thread())
    assert told(result) == ["did a one two"]


async def asked_again(saver: DurableSaver, drive: Drive, world: World) -> tuple[Graph, Any]:
    """Return a graph that asks about a second attempt, after a human's "retry", and that first answer."""
    world.trouble = [TimeoutError(), TimeoutError()]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    retry = answer(asked, "retry")
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, Command(resume=retry), thread())
    return graph, retry


async def test_one_retry_allows_one(saver: DurableSaver, drive: Drive, world: World) -> None:
    """LangGraph hands out the last answer again when a failed run continues."""
    graph, _ = await asked_again(saver, drive, world)
    for _ in range(2):
        await drive.invoke(graph, None, thread())
        [asked] = interrupts(await drive.state(graph, thread()))
        assert asked.value["attempts"] == 2
        assert world.done == ["a", "a"]
    another = answer(asked, "retry", attempts=2)
    assert told(await drive.invoke(graph, Command(resume=another), thread())) == ["did a"]
    assert world.done == ["a", "a", "a"]


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_repeated_answer_does_not_decide_the_next_attempt(
    saver: DurableSaver, drive: Drive, world: World, by_id: bool
) -> None:
    """A client that sends the last answer again does not know about another attempt."""
    graph, retry = await asked_again(saver, drive, world)
    await drive.invoke(graph, None, thread())
    for _ in range(2):
        [asked] = interrupts(await drive.state(graph, thread()))
        await drive.invoke(graph, Command(resume={asked.id: retry} if by_id else retry), thread())
        [asked] = interrupts(await drive.state(graph, thread()))
        assert 'add "attempts": 2' in asked.value["problem"]
    await drive.invoke(graph, Command(resume=answer(asked, "retry", attempts=1)), thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    assert "was for attempt 1" in asked.value["problem"]
    assert world.done == ["a", "a"]
    other = answer(asked, "happened", result="it did")
    assert told(await drive.invoke(graph, Command(resume=other), thread())) == ["it did"]


async def test_an_answer_that_could_not_be_stored_counts_when_repeated(
    saver: DurableSaver, drive: Drive, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is noted in the same statement as its decision: a crash between the two would refuse the answer."""
    world.trouble = [TimeoutError()]
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], calls(("remind", "a", "1")))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, None, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    move = ops.move_effect
    for is_done in (False, True):
        failed = False

        async def failing(
            db: Any, effect_id: Any, transition: Transition, *, is_done: bool = is_done, **known: Any
        ) -> Any:
            nonlocal failed
            if failed or not transition.notes:  # another move than that of the answer
                return await move(db, effect_id, transition, **known)
            failed = True
            if is_done:
                await move(db, effect_id, transition, **known)
            raise RuntimeError("killed")

        monkeypatch.setattr(ops, "move_effect", failing)
        with pytest.raises(RuntimeError, match="killed"):
            await drive.invoke(graph, Command(resume=answer(asked, "retry")), thread())
        monkeypatch.setattr(ops, "move_effect", move)
        [record] = saver.effects.list()
        assert record.state == ("failed" if is_done else "unknown")
    result = await drive.invoke(graph, Command(resume=answer(asked, "retry")), thread())
    assert told(result) == ["did a"]
    assert world.done == ["a", "a"]


async def test_a_question_about_an_effect_keeps_the_bodys_answer(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The body waited after it began, and the vendor does not know: the answer about the effect is not the body's."""

    def remind(text: str) -> Any:
        return world(f"{text} {interrupt('first?')} {interrupt('second?')}")

    options: dict[str, Any] = {"verify": lambda record: Undetermined(), "on_unknown": "ask"}
    graph = agent(saver, [made(drive, remind, **options)], calls(("remind", "a", "1")))
    result = await drive.invoke(graph, GIVEN, thread())
    own = {"first?": "one", "second?": "two"}
    told_of: list[Any] = []
    for _ in range(12):
        pending = interrupts(await drive.state(graph, thread()))
        if not pending:
            break
        [asked] = pending
        if isinstance(asked.value, dict):
            assert "problem" not in asked.value
            told_of.append("remind")
            resume: Any = answer(asked, "retry", attempts=asked.value["attempts"])
        else:
            told_of.append(asked.value)
            resume = own[asked.value]
        result = await drive.invoke(graph, Command(resume=resume), thread())
    assert told(result) == ["did a one two"], told_of
    assert world.done == ["a one two"]


# --- several in one task ---


@pytest.mark.parametrize("by_id", [False, True])
async def test_parallel_questions_in_one_task_get_their_answers(
    saver: DurableSaver, drive: Drive, world: World, by_id: bool
) -> None:
    """Each effect and each tool that asks gets its answer, in whatever order they run."""

    def lose(text: str) -> Any:
        world(text)
        raise TimeoutError

    def confirm(text: str) -> Any:
        return f"{text}: {interrupt(f'{text}, first?')} {interrupt(f'{text}, second?')}"

    tools = [made(drive, lose, on_unknown="ask", lease=timedelta(seconds=1)), made(drive, confirm)]
    script = calls(("lose", "a", "1"), ("confirm", "b", "2"), ("lose", "c", "3"))
    graph = agent(saver, tools, script)
    with suppress(TimeoutError):  # or the question comes first
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    log = saver.effects
    while sorted([r.tool async for r in log.alist(state="unknown")]) != ["lose", "lose"]:
        with suppress(TimeoutError, EffectError):
            await drive.invoke(graph, None, thread(), durability="sync")
    result = await drive.invoke(graph, None, thread())
    for _ in range(10):
        pending = interrupts(await drive.state(graph, thread()))
        if not pending:
            break
        [asked] = pending
        if isinstance(asked.value, dict):
            assert "problem" not in asked.value
            said: Any = answer(asked, "happened", result=f"{asked.value['args']['text']} it was")
        else:
            said = f"yes to {asked.value}"
        result = await drive.invoke(graph, Command(resume={asked.id: said} if by_id else said), thread())
    assert told(result) == ["a it was", "b: yes to b, first? yes to b, second?", "c it was"]
    assert sorted(world.done) == ["a", "c"]


# --- forks ---


@pytest.mark.parametrize("decision", ["replay", "new"])
async def test_a_decision_about_a_fork_replays_or_runs_anew(
    saver: DurableSaver, drive: Drive, world: World, decision: str
) -> None:
    def remind(text: str) -> Any:
        return world(f"{text} {interrupt('really?')}")

    graph = agent(saver, [made(drive, remind, on_fork="ask")], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, Command(resume="yes"), thread())
    assert world.done == ["a yes"]
    [before] = [s for s in await drive.history(graph, thread()) if "tools" in s.next and s.metadata]
    await drive.update(graph, before.config, {"messages": []}, as_node="model")
    for wrong in (None, "happened"):
        said = answer(asked, wrong) if wrong else None  # type: ignore[has-type] # noqa: F821
        await drive.invoke(graph, Command(resume=said) if wrong else None, thread())
        [asked] = interrupts(await drive.state(graph, thread()))
        assert asked.value["decisions"] == ["replay", "new"]
        assert ("problem" in asked.value) == bool(wrong)
    result = await drive.invoke(graph, Command(resume=answer(asked, decision)), thread())
    if decision == "new":
        [own] = interrupts(await drive.state(graph, thread()))
        assert own.value == "really?"
        result = await drive.invoke(graph, Command(resume="oh yes"), thread())
        assert told(result) == ["did a oh yes"]
        assert world.done == ["a yes", "a oh yes"]
    else:
        assert told(result) == ["did a yes"]
        assert world.done == ["a yes"]


# --- possible duplicates ---


@pytest.mark.parametrize("decision", ["happened", "retry"])
async def test_a_decision_on_a_duplicate_applies_to_both_calls(
    saver: DurableSaver, drive: Drive, world: World, decision: str
) -> None:
    def remind(text: str) -> Any:
        if not world.done:
            world(text)
        return world(f"{text} {interrupt('first?')} {interrupt('second?')}")

    world.trouble = [TimeoutError("no answer")]
    graph = requesting_twice(saver, drive, remind, on_unknown="ask")
    await drive.invoke(graph, GIVEN, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    result = await drive.invoke(graph, Command(resume=answer(asked, decision, result="seen")), thread())
    if decision == "happened":
        assert told(result)[1:] == ["seen"]
        assert world.done == ["a"]
        return
    for question, said in (("first?", "one"), ("second?", "two")):
        [own] = interrupts(await drive.state(graph, thread()))
        assert own.value == question
        result = await drive.invoke(graph, Command(resume=said), thread())
    assert told(result)[1:] == ["did a one two"]
    assert world.done == ["a", "a one two"]


async def test_a_duplicate_declared_failed_is_not_run_by_either_call(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The second call is answered with the decision."""
    world.trouble = [TimeoutError("no answer")]
    script = (calls(("remind", "a", "1")), calls(("remind", "a", "2")))
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], *script, errors=(TimeoutError,))
    await drive.invoke(graph, GIVEN, thread())
    [asked] = interrupts(await drive.state(graph, thread()))
    result = await drive.invoke(graph, Command(resume=answer(asked, "failed")), thread())
    assert "did not take place" in told(result)[-1]
    assert world.done == ["a"]
    assert states(saver) == ["failed"]
