"""The commands `interrupts` and `timeline`, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver, effect
from langgraph_durable.cli.main import main

QUESTION = "Pay?\n\x1b[2J\u202e"
"""Contains codes that would clear a terminal and reverse its text."""


def graph_of(saver: DurableSaver, question: Any = QUESTION) -> Any:
    @effect(name="pay")
    def pay() -> str:
        return "paid"

    def model(state: MessagesState) -> dict[str, Any]:
        call = ToolCall(name="pay", args={"cents": 100}, id="1")
        return {"messages": [AIMessage("let me see", tool_calls=[call])]}

    def ask(state: MessagesState) -> dict[str, Any]:
        said = f"{pay()}, said {interrupt(question)}"
        return {"messages": [ToolMessage(said, tool_call_id="1", name="pay")]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("model", model), ("ask", ask)])
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def thread(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def run(capsys: pytest.CaptureFixture[str], conninfo: str, *arguments: str) -> list[str]:
    assert main([*arguments, "--database", conninfo]) == 0
    return capsys.readouterr().out.splitlines()


def test_interrupts_lists_waiting_threads_oldest_first(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, conninfo, "interrupts") == ["no thread waits for a human"]
    graph = graph_of(saver)
    for thread_id in ("b", "a", "new\nline"):
        graph.invoke({"messages": []}, thread(thread_id))
    shown = run(capsys, conninfo, "interrupts")
    assert shown[0].split() == ["THREAD", "AGE", "INTERRUPT", "EFFECT", "QUESTION"]
    assert [line.split()[0] for line in shown[1:4]] == ["b", "a", "new\\nline"]  # the oldest first
    assert all("Pay?\\n\\x1b[2J\\u202e" in line for line in shown[1:4])
    assert "Command(resume={INTERRUPT: answer})" in shown[-1]

    entries = [json.loads(line) for line in run(capsys, conninfo, "interrupts", "--json")]
    assert [found["thread_id"] for found in entries] == ["a", "b", "new\nline"]
    assert all(found["question"] == QUESTION and 0 <= found["age"] < 600 for found in entries)
    [only] = run(capsys, conninfo, "interrupts", "--thread", "a", "--json")
    resume = {json.loads(only)["interrupt_id"]: "yes"}
    graph.invoke(Command(resume=resume), thread("a"))
    assert run(capsys, conninfo, "interrupts", "--thread", "a") == ["no thread waits for a human"]


def test_interrupts_names_the_effect_of_a_question(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = [TimeoutError("no answer")]

    @effect(on_unknown="ask")
    def pay() -> str:
        if lost:
            raise lost.pop()
        return "paid"

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", pay())]}

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": []}, thread("t"))
    graph.invoke(None, thread("t"))
    [unknown] = saver.effects.pending()
    assert unknown.effect_id in run(capsys, conninfo, "interrupts")[1]


def test_timeline_prints_each_entry_on_one_line(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, conninfo, "timeline", "never") == ["nothing is stored for thread 'never'"]
    assert run(capsys, conninfo, "timeline", "never", "--json") == []
    graph = graph_of(saver)
    graph.invoke({"messages": []}, thread("t"))
    graph.invoke(Command(resume="yes"), thread("t"))
    shown = run(capsys, conninfo, "timeline", "t")
    for line in (
        "run started -1",
        'model answered let me see pay({"cents": 100})',
        "tool begun pay({}), attempt 1 by",
        "tool ended pay completed, attempt 1 by",
        "interrupted Pay?\\n\\x1b[2J\\u202e",
        "resumed yes",
        "tool answered pay: paid, said yes",
        "ended 2",
    ):
        assert any(line in " ".join(one.split()) for one in shown), (line, shown)
    assert all(line.isprintable() for line in shown)
    entries = [json.loads(line) for line in run(capsys, conninfo, "timeline", "t", "--json")]
    assert [entry["phase"].replace("_", " ") for entry in entries] == [line[25:39].rstrip() for line in shown]
    assert {entry["thread_id"] for entry in entries} == {"t"}
    assert {entry["schema_version"] for entry in entries} == {1}


def test_unreadable_rows_are_named(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph_of(saver).invoke({"messages": []}, thread("t"))
    with saver._db.open_session() as (_, connection):
        connection.execute("UPDATE langgraph_durable.writes SET value = '\\xc1'")
    assert "cannot read the question of task" in run(capsys, conninfo, "interrupts")[1]
    shown = run(capsys, conninfo, "timeline", "t")
    assert any("unreadable" in line and "cannot read a write of task" in line for line in shown)


def test_question_that_is_not_json_is_shown(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(state: MessagesState) -> None:
        interrupt({("no", "key of JSON"): float("nan")})

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.compile(checkpointer=saver).invoke({"messages": []}, thread("odd"))
    assert '{"no,key of JSON": "NaN"}' in run(capsys, conninfo, "interrupts")[1]
    [only] = run(capsys, conninfo, "interrupts", "--json")
    assert json.loads(only)["question"] == {"no,key of JSON": "NaN"}
