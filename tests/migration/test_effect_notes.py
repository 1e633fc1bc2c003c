"""Effects of the last release that kept its notes as text, upgraded and continued.

`effects_at_0003.dump` has the schema and the rows of that release, written by its own code: five threads of the graphs
below, each stopped in the middle of a question or a decision, and five effects of plain code. Only the entries
`another-task/replay`, `scribble` and NULL were added by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver, EffectUnknownError, Happened, NotHappened, effect
from langgraph_durable.errors import CheckpointCorruptedError
from tests.acceptance.driving import thread
from tests.acceptance.effect_graphs import World, agent, answer, calls, told
from tests.acceptance.graphs import Graph

DUMP = Path(__file__).with_name("effects_at_0003.dump")


@pytest.fixture
def saver(empty_conninfo: str) -> Iterator[DurableSaver]:
    """A saver on the upgraded rows."""
    with psycopg.connect(empty_conninfo, autocommit=True) as connection:
        connection.execute(DUMP.read_bytes())
    with DurableSaver.from_conn_string(empty_conninfo) as saver:
        saver.setup()
        yield saver


@pytest.fixture
def world() -> World:
    return World()


def build(saver: DurableSaver, world: World, **policy: Any) -> Graph:
    @tool
    @effect(**policy)
    def remind(text: str) -> str:
        """Remind."""
        return world(text)

    return agent(saver, [remind], calls(("remind", "a", "1")), calls(("remind", "a", "2")))


def build_approved(saver: DurableSaver, world: World) -> Graph:
    @tool
    @effect(on_fork="ask")
    def remind(text: str) -> str:
        """Remind."""
        return world(f"{text} {interrupt('really?')}")

    return agent(saver, [remind], calls(("remind", "a", "1")))


def run(graph: Graph, given: Any, thread_id: str) -> dict[str, Any]:
    result: dict[str, Any] = graph.invoke(given, thread(thread_id), durability="sync")
    return result


def rows(conninfo: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo) as connection:
        return connection.execute(query).fetchall()


def test_every_format_becomes_a_note_or_a_column(saver: DurableSaver, empty_conninfo: str) -> None:
    notes = rows(
        empty_conninfo,
        "SELECT coalesce(e.thread_id, 'plain code'), n.kind, n.fence, n.task_id = e.task_id, n.token "
        "FROM langgraph_durable.effect_notes n JOIN langgraph_durable.effects e USING (effect_id)",
    )
    decisions = [token for _, kind, _, _, token in notes if kind == "decision"]
    assert [len(token) for token in decisions] == [36, 36]
    assert Counter(notes) == Counter(
        [
            ("question", "question", 1, True, ""),
            ("answer", "question", 1, True, ""),
            ("answer", "answer", 0, False, "e270f896f6d5a09d"),
            ("answer", "decision", 0, False, decisions[0]),
            ("refused", "question", 1, True, ""),
            ("refused", "answer", 0, False, "d90b5a52320af004"),
            ("refused", "decision", 0, False, decisions[1]),
            ("refused", "refused", 0, True, ""),
            ("waiting", "waiting", 0, False, ""),
            ("fork", "question", 2, False, ""),
            ("fork", "fork", 0, False, "new"),
            ("fork", "fork", 0, False, "replay"),
            ("plain code", "damaged", 0, None, "scribble"),
            ("plain code", "damaged", 0, None, ""),
        ]
    )
    columns = rows(
        empty_conninfo,
        "SELECT coalesce(thread_id, 'plain code'), fence, keeps_key, claim_id IS NOT NULL, note_count = ("
        "    SELECT count(*) FROM langgraph_durable.effect_notes n WHERE n.effect_id = e.effect_id"
        ") FROM langgraph_durable.effects e ORDER BY effect_id",
    )
    assert columns == [
        ("question", 1, False, False, True),
        ("answer", 3, False, True, True),
        ("refused", 2, False, False, True),
        ("waiting", 1, False, False, True),
        ("fork", 2, False, True, True),
        ("fork", 1, False, False, True),
        ("plain code", 1, True, False, True),
        ("plain code", 1, False, False, True),
        ("plain code", 2, False, True, True),
        ("plain code", 1, False, False, True),
    ]


def test_a_question_is_pending_and_is_answered(saver: DurableSaver, world: World) -> None:
    [effect_] = saver.effects.list(thread_id="question")
    [pending] = saver.pending_interrupts(thread_id="question")
    assert pending.effect_id == effect_.effect_id
    graph = build(saver, world, on_unknown="ask")
    [asked] = graph.get_state(thread("question")).interrupts
    result = run(graph, Command(resume=answer(asked, "happened", result="it did")), "question")
    assert told(result) == ["it did", "did a"]  # the second call is another effect


def test_an_answer_that_was_used_is_refused(saver: DurableSaver, world: World) -> None:
    graph = build(saver, world, on_unknown="ask")
    [effect_] = saver.effects.list(thread_id="answer")
    again = {"effect": effect_.effect_id, "decision": "retry"}
    run(graph, None, "answer")
    run(graph, Command(resume=again), "answer")
    [asked] = graph.get_state(thread("answer")).interrupts
    assert "was given before" in asked.value["problem"]
    assert world.done == []
    run(graph, Command(resume=again | {"attempts": 2}), "answer")
    assert world.done[:1] == ["a"]


def test_a_refused_task_stays_refused(saver: DurableSaver, world: World) -> None:
    answers = told(run(build(saver, world, on_unknown="ask"), None, "refused"))
    assert "a human decided that it is not to be tried again" in answers[0]
    assert answers[1:] == ["did a"]  # the second call is another effect
    assert world.done == ["a"]


def test_a_task_that_waits_finds_its_duplicate_decided(saver: DurableSaver, world: World) -> None:
    graph = build(saver, world)
    with pytest.raises(EffectUnknownError):
        run(graph, None, "waiting")
    [waiting] = saver.effects.pending("waiting")
    saver.effects.resolve(waiting.effect_id, Happened("it did"))
    assert told(run(graph, None, "waiting"))[-1] == "it did"
    assert world.done == []


def test_a_decision_about_a_fork_is_not_asked_for_again(saver: DurableSaver, world: World) -> None:
    graph = build_approved(saver, world)
    assert [i.value for i in graph.get_state(thread("fork")).interrupts] == ["really?"]
    assert told(run(graph, Command(resume="oh yes"), "fork")) == ["did a oh yes"]
    assert world.done == ["a oh yes"]


def test_an_idempotency_key_stays_where_the_attempt_may_still_send(saver: DurableSaver) -> None:
    log = saver.effects
    kept, changed = list(log.list(state="unknown", tool="pay"))[:2]
    for key, before in (("kept", kept), ("changed", changed)):
        log.resolve(before.effect_id, NotHappened())
        with log.effect("pay", key=key) as e:
            assert (e.effect_id, e.attempts) == (before.effect_id, 2)
            assert (e.idempotency_key == before.idempotency_key) == (key == "kept")
            e.complete()


def test_an_abandoned_second_claim_is_unknown(saver: DurableSaver) -> None:
    with pytest.raises(EffectUnknownError), saver.effects.effect("pay", key="claimed again"):
        pytest.fail("it ran again")


def test_damaged_notes_are_still_refused(saver: DurableSaver) -> None:
    with pytest.raises(CheckpointCorruptedError, match="damaged"), saver.effects.effect("pay", key="damaged"):
        pytest.fail("it ran again")


def test_a_copied_thread_has_the_notes(saver: DurableSaver, world: World) -> None:
    saver.copy_thread("question", "copy")
    [copy] = saver.effects.list(thread_id="copy")
    said = {"effect": copy.effect_id, "decision": "happened", "result": "it did"}
    result = run(build(saver, world, on_unknown="ask"), Command(resume=said), "copy")
    assert told(result) == ["it did", "did a"]  # the second call is another effect
    [source] = saver.effects.list(thread_id="question")
    assert source.state == "unknown"
