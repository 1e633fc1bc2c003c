"""A scripted model: what it says is a function of the messages that it sees, as with a real one."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

_MOST_REFUSALS = 4
"""Answers other than the expected ones, since the last user message, after which the model gives up."""


def ask(wishes: Sequence[str]) -> HumanMessage:
    """Return a user's message that asks for these tools: `tool:item` each."""
    return HumanMessage(" ".join(wishes) or "go on")


def wishes_in(message: HumanMessage) -> list[str]:
    return [word for word in str(message.content).split() if ":" in word]


def open_wishes(messages: Sequence[Any]) -> Counter[str]:
    """Return what the user asked for and no tool has done since.

    A message that asks for what is open already repeats the request; after it was done, it is another request. What was
    healed was open when the next message was written, whatever its place in the conversation.
    """
    wanted: Counter[str] = Counter()
    healed: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, HumanMessage):
            wanted |= Counter(wishes_in(message)) - healed
        elif isinstance(message, AIMessage):
            healed.clear()
        elif isinstance(message, ToolMessage) and (wish := wish_done(str(message.content))):
            wanted -= Counter([wish])
            healed += Counter([wish] if _is_healed(message) else [])
    return wanted


def _is_healed(message: ToolMessage) -> bool:
    """Return whether a result came into the conversation later than the messages behind it."""
    return bool(message.additional_kwargs.get("effect", {}).get("healed"))


def wish_done(text: str) -> str | None:
    """Return the wish that a tool's result fulfils."""
    first, _, rest = text.partition(" ")
    return rest.split(" ", 1)[0] if first == "did" else None


def calls_for(wishes: Sequence[str]) -> list[dict[str, Any]]:
    # Providers number the calls of a message, so their ids are the same in the next one.
    return [
        {"name": tool, "args": {"item": item}, "id": f"call_{number}"}
        for number, (tool, _, item) in enumerate(wish.partition(":") for wish in wishes)
    ]


def reply(messages: Sequence[Any], *, serial: bool, ids: bool) -> AIMessage:
    """Return the model's next message."""
    wanted = sorted(open_wishes(messages).elements())
    latest = list(messages)
    while latest and not isinstance(latest[0], HumanMessage):
        del latest[0]
    for position in range(len(messages) - 1, -1, -1):
        if isinstance(messages[position], HumanMessage):
            latest = list(messages[position:])
            break
    refused = sum(isinstance(m, ToolMessage) and wish_done(str(m.content)) is None for m in latest)
    message_id = f"ai-{uuid.uuid4()}" if ids else None
    if not wanted or refused > _MOST_REFUSALS:
        return AIMessage("done", id=message_id)
    return AIMessage("", id=message_id, tool_calls=calls_for(wanted[:1] if serial else wanted))


def dangling_calls(messages: Sequence[Any]) -> list[str]:
    """Return the ids of tool calls that no message right after theirs answers, which providers refuse."""
    unanswered: list[str] = []
    for position, message in enumerate(messages):
        if isinstance(message, AIMessage):
            answers = messages[position + 1 : position + 1 + len(message.tool_calls)]
            given = {getattr(answer, "tool_call_id", None) for answer in answers}
            unanswered += [str(call["id"]) for call in message.tool_calls if call["id"] not in given]
    return unanswered


class ScriptedModel(BaseChatModel):
    """The same model for `create_agent`."""

    serial: bool = False
    refuse: Callable[[list[str]], None] | None = None
    """Gets the calls that a conversation leaves without an answer, if that is to be noted."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if self.refuse is not None and (dangling := dangling_calls(messages)):
            self.refuse(dangling)
        said = reply(messages, serial=self.serial, ids=True)
        return ChatResult(generations=[ChatGeneration(message=said)])
