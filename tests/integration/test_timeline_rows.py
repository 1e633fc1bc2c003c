"""Timelines of rows that graphs rarely leave."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langgraph_durable import DurableSaver
from tests.samples import checkpoint, config


def put(saver: DurableSaver, parent: str | None = None, *, ns: str = "", root: str | None = None) -> str:
    made = checkpoint()
    metadata: Any = {"source": "loop", "step": 0, "parents": {"": root} if root else {}}
    saver.put(config("t", parent, ns), made, metadata, made["channel_versions"])
    return made["id"]


def answer(saver: DurableSaver, where: str, text: str, id_: str | None, *, ns: str = "") -> None:
    task = f"task of {ns or 'root'} {where}"
    message = AIMessage(text, id=id_)
    saver.put_writes(config("t", where, ns), [("messages", [message])], task, "~__pregel_pull, node")


def answers(saver: DurableSaver) -> list[tuple[str, str | None]]:
    answered = [e for e in saver.timeline("t") if e.phase == "model_answered"]
    return [(e.payload["content"], e.checkpoint_ns) for e in answered]


def test_message_that_gets_its_id_in_an_outer_graph_appears_once(saver: DurableSaver) -> None:
    root = put(saver)
    first, second = put(saver, ns="a:1", root=root), put(saver, ns="b:2", root=root)
    answer(saver, first, "ok", None, ns="a:1")
    answer(saver, second, "ok", None, ns="b:2")
    for id_ in ("x", "y"):
        saver.put_writes(config("t", root), [("messages", AIMessage("ok", id=id_))], id_, "~__pregel_pull, n")
    assert answers(saver) == [("ok", "a:1"), ("ok", "b:2")]


def test_equal_messages_of_two_steps_both_appear(saver: DurableSaver) -> None:
    root = put(saver)
    answer(saver, root, "ok", None)
    answer(saver, put(saver, root), "ok", "y")
    assert answers(saver) == [("ok", ""), ("ok", "")]


def test_write_of_a_subgraph_comes_before_the_next_step(saver: DurableSaver) -> None:
    root = put(saver)
    inside = put(saver, ns="a:1", root=root)
    put(saver, root)
    answer(saver, inside, "late", "x", ns="a:1")
    assert [e.phase for e in saver.timeline("t")] == ["step", "step", "model_answered", "step"]


def test_checkpoints_with_the_same_ulid_all_appear(
    saver: DurableSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_durable._inspect.trail._STEPS", 1)
    ids = [put(saver), put(saver, ns="a:1"), put(saver, ns="b:2")]
    with saver._db.open_session() as (_, connection):
        connection.execute(
            "UPDATE langgraph_durable.checkpoints SET ulid = '01900000-0000-7000-8000-000000000000'"
        )
    assert [e.checkpoint_id for e in saver.timeline("t")] == ids


def test_write_without_a_time_has_that_of_its_checkpoint(saver: DurableSaver) -> None:
    answer(saver, put(saver), "ok", "x")
    with saver._db.open_session() as (_, connection):
        connection.execute("UPDATE langgraph_durable.writes SET stored_at = NULL")
    step, answered = saver.timeline("t")
    assert (step.phase, answered.phase) == ("step", "model_answered")
    assert step.timestamp == answered.timestamp
