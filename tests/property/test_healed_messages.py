"""Any conversation that is healed obeys the providers' rule, keeps its messages, and needs no second healing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import add_messages
from langgraph.types import Overwrite

from langgraph_durable import DurableSaver
from langgraph_durable.effects._healing.conversation import is_placeholder
from tests.acceptance.driving import thread
from tests.acceptance.heal_graphs import problem
from tests.conftest import Databases

IDS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def saver(databases: Databases, template: str) -> Iterator[DurableSaver]:
    name = databases.create(template)
    with DurableSaver.from_conn_string(databases.conninfo(name)) as made:
        yield made
    databases.drop(name)


def called(ids: Sequence[str], malformed: Sequence[str]) -> AIMessage:
    bad = [{"name": "t", "args": "{", "id": i, "error": None, "type": "invalid_tool_call"} for i in malformed]
    return AIMessage(
        "",
        tool_calls=[{"name": "t", "args": {}, "id": i} for i in ids],
        invalid_tool_calls=bad,
    )


def made_up(tool_call_id: str) -> ToolMessage:
    text = f"Tool call t with id {tool_call_id} was cancelled - another message came in before it could be completed."
    return ToolMessage(text, tool_call_id=tool_call_id)


def histories() -> st.SearchStrategy[list[BaseMessage]]:
    """Calls with ids used again, also within a message; answers missing, misplaced, twice, made up, and to no call."""
    some_ids = st.sampled_from(IDS)
    message: st.SearchStrategy[BaseMessage] = st.one_of(
        st.just(None).map(lambda _: HumanMessage("go")),
        st.builds(called, st.lists(some_ids, max_size=3), st.lists(some_ids, max_size=1)),
        some_ids.map(lambda i: ToolMessage("real", tool_call_id=i)),
        some_ids.map(lambda i: ToolMessage([{"type": "text", "text": "real"}], tool_call_id=i)),
        some_ids.map(made_up),
    )
    return st.lists(message, max_size=12)


def numbered(messages: list[BaseMessage], with_ids: bool) -> list[BaseMessage]:
    if with_ids:
        for number, message in enumerate(messages):
            message.id = f"m{number}"
    return messages


def kept(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return the messages that are not answers, in order."""
    return [message for message in messages if not isinstance(message, ToolMessage)]


@settings(
    max_examples=int(os.environ.get("DURABLE_EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=histories(), with_ids=st.booleans())
def test_any_history_is_healed(saver: DurableSaver, messages: list[BaseMessage], with_ids: bool) -> None:
    messages = numbered(messages, with_ids)
    before = [message.model_copy(deep=True) for message in messages]
    healed = saver.effects.heal(messages, thread())
    assert messages == before, "the given messages are not changed"

    assert problem(healed) is None
    assert [id(m) for m in kept(healed)] == [id(m) for m in kept(messages)]
    given_answers = {id(m) for m in messages if isinstance(m, ToolMessage) and not is_placeholder(m)}
    for answer in (m for m in healed if isinstance(m, ToolMessage)):
        assert not is_placeholder(answer) or id(answer) in {id(m) for m in messages}  # that answers no call
        assert id(answer) in given_answers or is_placeholder(answer) or answer.additional_kwargs["effect"]
    first_answers = _first_answers(messages)
    assert first_answers <= {id(m) for m in healed}, "no real answer is lost"

    again = saver.effects.heal(healed, thread())
    assert again.command is None
    assert list(again) == list(healed)

    if healed.command is None:
        assert list(healed) == messages
        return
    writes: Any = healed.command.update
    [(_, change)] = writes
    if isinstance(change, Overwrite):
        assert change.value == list(healed)
    elif with_ids:
        assert add_messages(list(messages), change) == list(healed)  # type: ignore[arg-type]


def _first_answers(messages: Sequence[BaseMessage]) -> set[int]:
    """Return the real answers that are the first ones of their calls, by a second way of counting."""
    open_calls: dict[str, int] = {}
    found: set[int] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            asked = [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
            open_calls |= {str(i): asked.count(i) for i in asked}
        elif isinstance(message, ToolMessage) and not is_placeholder(message):
            left = open_calls.get(message.tool_call_id)
            if left is None or left > 0:
                found.add(id(message))
                open_calls[message.tool_call_id] = (left or 1) - 1 if left is not None else 0
                if left is None:
                    del open_calls[message.tool_call_id]
    return found
