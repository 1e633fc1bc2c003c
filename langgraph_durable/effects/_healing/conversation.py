"""The tool calls of a conversation and their answers: which are missing, and the conversation with them in place.

Providers require each call of an AIMessage to be answered by one ToolMessage, directly after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages

_PLACEHOLDER = re.compile(r"Tool call .* with id (?P<id>.*) was cancell?ed\b")
"""What middleware that patches dangling calls answers, such as deepagents' PatchToolCallsMiddleware."""


@dataclass(slots=True, eq=False)
class RequestedCall:
    """A tool call of an AIMessage, and its answer in the conversation.

    Attributes:
        message: The AIMessage.
        ordinal: The position among the message's calls.
        is_alone_by_id: Whether no other call of the message has this id.
        is_valid: Whether its arguments could be parsed, so that a tool may have run.
        answer: The ToolMessage that the conversation has for it.
        placeholder: What answers it without knowing what became of it.
    """

    message: AIMessage
    ordinal: int
    tool_call_id: str
    name: str
    args: Mapping[str, Any]
    is_valid: bool
    is_alone_by_id: bool = True
    answer: ToolMessage | None = None
    placeholder: ToolMessage | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """A message that is not an answer, its calls, and what answered them directly after it."""

    message: BaseMessage
    calls: list[RequestedCall] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)


class Conversation:
    """A list of messages, read as calls and answers.

    An answer belongs to the nearest call with its id before it. A second answer to a call is left out. A ToolMessage
    that answers no call stays where it is.
    """

    def __init__(self, messages: Sequence[Any]) -> None:
        given = list(messages)
        plain = all(isinstance(message, BaseMessage) for message in given)
        self.messages: list[Any] = given if plain else list(convert_to_messages(given))
        self._turns: list[_Turn] = []
        self._by_id: dict[str, list[RequestedCall]] = {}
        for message in self.messages:
            if not (isinstance(message, ToolMessage) and self._take_answer(message)):
                self._add_turn(message)

    def _add_turn(self, message: BaseMessage) -> None:
        turn = _Turn(message)
        if isinstance(message, AIMessage):
            turn.calls = list(_calls_of(message))
            for tool_call_id in {call.tool_call_id for call in turn.calls}:
                same = [call for call in turn.calls if call.tool_call_id == tool_call_id]
                self._by_id[tool_call_id] = same
                for call in same:
                    call.is_alone_by_id = len(same) == 1
        self._turns.append(turn)

    def _take_answer(self, message: ToolMessage) -> bool:
        """Assign an answer to its call; return False if there is none."""
        calls = self._by_id.get(message.tool_call_id)
        if calls is None:
            return False
        call = next((call for call in calls if call.answer is None), None)
        if call is None:  # a second answer
            return True
        if is_placeholder(message):
            call.placeholder = call.placeholder or message
            return True
        call.answer = message
        turn = next(turn for turn in reversed(self._turns) if turn.message is call.message)
        turn.answers.append(message)
        return True

    @property
    def calls(self) -> list[RequestedCall]:
        """All calls, in order."""
        return [call for turn in self._turns for call in turn.calls]

    @property
    def dangling(self) -> list[RequestedCall]:
        """The calls without an answer, or with a placeholder, in order."""
        return [call for call in self.calls if call.answer is None]

    def is_unique(self, tool_call_id: str) -> bool:
        """Return whether only one message has calls of an id; providers may use an id again."""
        return len({id(call.message) for call in self.calls if call.tool_call_id == tool_call_id}) == 1

    def with_answers(
        self,
        answers: Mapping[RequestedCall, ToolMessage],
        followers: Mapping[RequestedCall, Sequence[BaseMessage]],
    ) -> list[AnyMessage]:
        """Return the messages with every answer in its place.

        Args:
            answers: The answers to the dangling calls.
            followers: What else a tool added to the conversation, by its call.
        """
        healed: list[Any] = []
        for turn in self._turns:
            healed.append(turn.message)
            if any(call in answers for call in turn.calls):
                healed += [
                    call.answer or answers[call] for call in turn.calls if call.answer or call in answers
                ]
                healed += [message for call in turn.calls for message in followers.get(call, ())]
            else:
                healed += turn.answers
        return healed

    def change_to(self, healed: Sequence[AnyMessage]) -> Any:
        """Return what to write to the conversation's channel to turn it into another; None if they are the same.

        Messages to append, or an Overwrite: reducers know no way to insert, and not all can remove all messages.
        """
        from langgraph.types import Overwrite

        before = self.messages
        if len(healed) >= len(before) and all(a is b for a, b in zip(before, healed, strict=False)):
            return list(healed[len(before) :]) or None
        return Overwrite(list(healed))


def is_whole(messages: Sequence[Any]) -> bool:
    """Return whether each call is answered once, directly after its message; quickly, for this is the usual case."""
    due: list[str | None] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in due or is_placeholder(message):
                return False
            due.remove(message.tool_call_id)
        elif due or not isinstance(message, BaseMessage):
            return False
        elif isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
            asked = (call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls))
            due = [tool_call_id for tool_call_id in asked if tool_call_id is not None]
    return not due


def is_placeholder(message: ToolMessage) -> bool:
    """Return whether an answer was made up by middleware that does not know what became of the call."""
    if not isinstance(message.content, str) or not message.content.startswith("Tool call "):
        return False
    found = _PLACEHOLDER.match(message.content)
    return found is not None and found["id"] == message.tool_call_id


def _calls_of(message: AIMessage) -> Iterator[RequestedCall]:
    """Yield a message's calls that can be answered; providers also get those whose arguments are malformed."""
    for ordinal, call in enumerate(message.tool_calls):
        if call["id"] is not None:
            yield RequestedCall(message, ordinal, call["id"], call["name"], call["args"], is_valid=True)
    known = len(message.tool_calls)
    for ordinal, bad in enumerate(message.invalid_tool_calls):
        if bad["id"] is not None:
            name = bad["name"] or "unknown"
            yield RequestedCall(message, known + ordinal, bad["id"], name, {}, is_valid=False)
