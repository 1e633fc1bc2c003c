"""Answers the tool calls of a conversation that a step left without an answer, with what is known of each.

completed, or a finished task's write in an abandoned step ── the result, as it would have been
may have happened ─────────────────────────────────────────── verify, a human, else "it may have, do not repeat it"
never begun ───────────────────────────────────────────────── "it was not run"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.messages import AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.refs import checkpoint_ref
from langgraph_durable._postgres.database import Database
from langgraph_durable.effects._healing.answers import (
    answers_in,
    commands_in,
    message_of,
    messages_in,
    notice,
    text_about,
    text_about_none,
    writes_of,
)
from langgraph_durable.effects._healing.branch import (
    AbandonedTask,
    AskedIn,
    Branch,
    await_checkpoints,
    read_branch,
)
from langgraph_durable.effects._healing.conversation import Conversation, RequestedCall, is_whole
from langgraph_durable.effects._healing.find_out import find_out, is_elsewhere
from langgraph_durable.effects._healing.known_tools import KnownTool, KnownTools
from langgraph_durable.effects._healing.match import match_effects
from langgraph_durable.effects._identity.location import ToolCall, find_place
from langgraph_durable.effects._protocol.executor import EffectExecutor
from langgraph_durable.effects._protocol.lineage import record_delivery
from langgraph_durable.effects._protocol.results import mark, recorded_value
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.effects.policy import EffectPolicy

if TYPE_CHECKING:
    from langgraph.types import Command

_CAUTIOUS = EffectPolicy()


class HealedMessages(list[AnyMessage]):
    """A conversation in which every tool call has an answer, directly after its message.

    Attributes:
        command: What a node returns to bring its state to this: a Command that updates the messages (in a channel with
            a reducer, such as `add_messages`), and the other channels that healed tools wrote to. None if nothing
            changed.
    """

    def __init__(self, messages: Sequence[AnyMessage], command: Command[Any] | None = None) -> None:
        super().__init__(messages)
        self.command = command


@dataclass(frozen=True, slots=True)
class HealRequest:
    """A conversation to heal, and where.

    Attributes:
        messages: The conversation.
        config: Names the thread, outside a running graph; inside, the running task's.
        tools: What is known of the tools.
        messages_key: The channel of the conversation, for the Command.
    """

    messages: Sequence[Any]
    config: RunnableConfig | None
    tools: KnownTools
    messages_key: str


@dataclass(slots=True)
class _Answer:
    """The answer to a call, and what else the tool wrote: messages, and writes to other channels."""

    message: ToolMessage
    followers: list[BaseMessage] = field(default_factory=list)
    writes: list[tuple[str, Any]] = field(default_factory=list)


async def heal(executor: EffectExecutor, db: Database, request: HealRequest) -> HealedMessages:
    """Answer the dangling tool calls of a conversation.

    Raises:
        GraphInterrupt: A human is asked what became of a call, by its policy.
        InvalidConfigError: No graph is running, and the config does not name a thread.

    Round trips: none if no call dangles; else 2, and those that the calls' effects need.
    """
    if is_whole(request.messages):
        return HealedMessages(request.messages)
    conversation = Conversation(request.messages)
    answers: dict[RequestedCall, _Answer] = {}
    if dangling := conversation.dangling:
        healing = await _Healing.begin(executor, db, request, conversation)
        for call in dangling:
            answers[call] = await healing.answer(call)
    healed = conversation.with_answers(
        {call: _placed(answer.message, call) for call, answer in answers.items()},
        {call: answer.followers for call, answer in answers.items()},
    )
    change = conversation.change_to(healed)
    if change is None:
        return HealedMessages(healed)
    from langgraph.types import Command

    writes = [(request.messages_key, change)]
    writes += [write for answer in answers.values() for write in answer.writes]
    return HealedMessages(healed, Command(update=writes))


def _placed(message: ToolMessage, call: RequestedCall) -> ToolMessage:
    """Return an answer under the id of the placeholder that it replaces; with an id in any case."""
    if call.placeholder is not None and call.placeholder.id is not None:
        return message.model_copy(update={"id": call.placeholder.id})
    return message if message.id is not None else message.model_copy(update={"id": str(uuid4())})


class _Healing:
    """Answers the dangling calls of one conversation."""

    def __init__(
        self, executor: EffectExecutor, db: Database, request: HealRequest, conversation: Conversation
    ) -> None:
        self._executor = executor
        self._db = db
        self._request = request
        self._conversation = conversation
        self._place = find_place(request.config)
        self._branch = Branch({}, [])
        self._effects: Mapping[RequestedCall, EffectRow] = {}
        self._used: set[AbandonedTask] = set()
        options = executor.context.options
        codec = Codec(
            executor.serde,
            options.indexed_metadata,
            options.segment_key,
            executor.context.segments,
            options.tuning,
        )
        self._asked_in = AskedIn(db, codec, self._thread_id if self.has_thread else "")

    @classmethod
    async def begin(
        cls, executor: EffectExecutor, db: Database, request: HealRequest, conversation: Conversation
    ) -> _Healing:
        """Read what the log and the abandoned steps have; a graph without a checkpointer has neither."""
        healing = cls(executor, db, request, conversation)
        if healing.has_thread:
            await healing._read()
        return healing

    @property
    def has_thread(self) -> bool:
        """Whether there may be records of the calls: not in a running graph without a checkpointer."""
        if self._place is not None or var_child_runnable_config.get() is None:
            return True
        return "thread_id" in ((self._request.config or {}).get("configurable") or {})

    @property
    def _thread_id(self) -> str:
        if self._place is not None:
            return self._place.thread_id
        return checkpoint_ref(self._request.config or {}).thread_id

    async def _read(self) -> None:
        place, executor = self._place, self._executor
        if place is not None:
            await await_checkpoints(self._db, executor.context, place)
            checkpoints: dict[str, str | None] = {**place.checkpoints}
        else:
            ref = checkpoint_ref(self._request.config or {})
            checkpoints = {ref.namespace: ref.checkpoint_id}
        self._branch = await read_branch(
            self._db, executor.serde, self._thread_id, checkpoints, is_running=place is not None
        )
        calls = self._conversation.dangling
        rows = await store.find_call_effects(
            self._db,
            self._thread_id,
            list({call.message.id for call in calls if call.message.id is not None}),
            list({call.tool_call_id for call in calls}),
        )
        self._effects = match_effects(executor.serde, self._conversation, rows, self._branch)

    # --- one call ---

    async def answer(self, call: RequestedCall) -> _Answer:
        """Return the answer to a dangling call."""
        if not call.is_valid:
            text = f"The call of {call.name} was not run, because its arguments are malformed."
            return _Answer(notice(text, call.tool_call_id, call.name, None))
        tool = self._request.tools.find(call.name)
        row = self._effects.get(call)
        if row is not None:
            row = await self._find_out(row, tool)
        task = await self._abandoned_task(call)
        if row is None:
            if task is not None:
                return self._answer_of_task(call, task)
            return _Answer(
                notice(text_about_none(call.name, tool.policy), call.tool_call_id, call.name, None)
            )
        if row.state != "completed":
            return _Answer(notice(text_about(call.name, row, tool.policy), call.tool_call_id, call.name, row))
        return await self._answer_of_completed(call, tool, row, task)

    async def _find_out(self, row: EffectRow, tool: KnownTool) -> EffectRow:
        policy = tool.policy or _CAUTIOUS
        is_alone = len(self._conversation.dangling) == 1
        call = self._executor.recovery_call(self._db, row, policy, self._place, is_alone=is_alone)
        return await find_out(call, row)

    async def _abandoned_task(self, call: RequestedCall) -> AbandonedTask | None:
        """Return the task of an abandoned step that answered a call."""
        for task in reversed(self._branch.tasks):  # of equal ones, the newest
            if task.answer_to(call) is None:
                continue
            asked = await self._asked_in.message(task, call.tool_call_id)
            if asked is None:  # its state has no messages, or they are replayed from writes
                is_it = self._conversation.is_unique(call.tool_call_id)
            elif asked.id is not None or call.message.id is not None:
                is_it = asked.id == call.message.id
            else:
                is_it = asked == call.message
            if is_it:
                return task
        return None

    def _answer_of_task(self, call: RequestedCall, task: AbandonedTask) -> _Answer:
        """Return the message that a task wrote; with its first one, everything else it wrote."""
        message = task.answer_to(call)
        assert message is not None  # noqa: S101 (the caller found the task by it)
        answer = _Answer(message)
        if task not in self._used:
            self._used.add(task)
            answer.followers = _followers(task.messages)
            answer.writes = task.other_writes
        return answer

    async def _answer_of_completed(
        self, call: RequestedCall, tool: KnownTool, row: EffectRow, task: AbandonedTask | None
    ) -> _Answer:
        """Return the result of a completed effect, and record that it was delivered."""
        policy = tool.policy or _CAUTIOUS
        if policy.on_fork != "replay" and is_elsewhere(row, self._branch):
            text = (
                f"The call of {call.name} was not run on this branch of the conversation, but it was on another one. "
                "Do not repeat it before it is clear that it is wanted twice."
            )
            return _Answer(notice(text, call.tool_call_id, call.name, row))
        answer = None
        if task is not None and (written := task.answer_to(call)) is not None and written.status != "error":
            answer = self._answer_of_task(call, task)
        if answer is None:
            answer = await self._answer_of_result(call, tool, row)
        answer.message = mark(answer.message, row, healed=True)
        if self._place is not None:
            await record_delivery(self._db, row.effect_id, self._place)
        return answer

    async def _answer_of_result(self, call: RequestedCall, tool: KnownTool, row: EffectRow) -> _Answer:
        """Return what ToolNode would have made of an effect's recorded result."""
        asked = ToolCall(call.message.id, call.tool_call_id, call.ordinal)
        is_kept, value = await recorded_value(self._db, self._executor.serde, row, asked)
        if not is_kept:
            text = text_about(call.name, row, tool.policy)
            return _Answer(notice(text, call.tool_call_id, call.name, row, is_error=False))
        messages = answers_in(value)
        commands = commands_in(value)
        if not messages and not commands:
            has_artifact = tool.has_artifact if tool.has_artifact is not None else isinstance(value, tuple)
            return _Answer(message_of(value, call.tool_call_id, call.name, has_artifact=has_artifact))
        found = next(
            (m for m in messages if isinstance(m, ToolMessage) and m.tool_call_id == call.tool_call_id), None
        )
        message = found or notice(
            f"The call of {call.name} took place.", call.tool_call_id, call.name, row, is_error=False
        )
        writes = [(channel, written) for channel, written in writes_of(commands) if not messages_in(written)]
        return _Answer(message, _followers(messages), writes)


def _followers(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages that a tool added beside answers, with ids: an Overwrite bypasses the reducer's."""
    added = [m for m in messages if not isinstance(m, (ToolMessage, RemoveMessage))]
    return [m if m.id is not None else m.model_copy(update={"id": str(uuid4())}) for m in added]
