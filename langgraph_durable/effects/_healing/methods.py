"""The methods of EffectLog that answer dangling tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._healing.heal import HealedMessages, HealRequest, heal
from langgraph_durable.effects._healing.known_tools import KnownTools
from langgraph_durable.effects._protocol.executor import EffectExecutor
from langgraph_durable.effects.policy import EffectPolicy


class HealingMethods:
    """A sync and async pair that runs one operation."""

    executor: EffectExecutor

    def heal(
        self,
        messages: Sequence[Any],
        config: RunnableConfig | None = None,
        *,
        tools: Iterable[Any] | KnownTools = (),
        policies: Mapping[str, EffectPolicy] | None = None,
        messages_key: str = "messages",
    ) -> HealedMessages:
        """Answer the tool calls of a conversation that have no answer, with what is known of each.

        Call it in a node, before the model: `return saver.effects.heal(state["messages"]).command`. A step that is
        abandoned, by a crash and a new message for example, leaves such calls, and models that are not told what became
        of them ask again. The answers are: the recorded result of a completed effect; what a finished task of the
        abandoned step wrote; for an effect that may have happened, what its policy's `verify` or a human says, or that
        it may have happened and must not be repeated; otherwise, that the call was not run. Answers that other
        middleware made up are replaced. A result given here counts as delivered to the thread.

        Args:
            messages: The conversation.
            config: Names the thread, outside a running graph. There, no human is asked, and no delivery is recorded.
            tools: The tools, for their policies. A tool with @effect is found without it if its function has its name.
            policies: Policies by name, of tools that a `tool_wrapper` guards.
            messages_key: The channel of the conversation.

        Returns:
            The conversation with all answers, each directly after its message, as a list. Its `command` is what a node
            returns to bring its state there, or None if nothing changed.

        Raises:
            InvalidConfigError: A call has no answer, no graph is running, and the config does not name a thread.

        Round trips: none if every call has an answer; else 2, and those that the calls' effects need.
        """
        request = _request(messages, config, tools, policies, messages_key)
        return run_sync(heal(self.executor, self.executor.context.db, request))

    async def aheal(
        self,
        messages: Sequence[Any],
        config: RunnableConfig | None = None,
        *,
        tools: Iterable[Any] | KnownTools = (),
        policies: Mapping[str, EffectPolicy] | None = None,
        messages_key: str = "messages",
    ) -> HealedMessages:
        """Answer the tool calls of a conversation that have no answer; see `heal`."""
        request = _request(messages, config, tools, policies, messages_key)
        return await heal(self.executor, self.executor.context.adb, request)


def _request(
    messages: Sequence[Any],
    config: RunnableConfig | None,
    tools: Iterable[Any] | KnownTools,
    policies: Mapping[str, EffectPolicy] | None,
    messages_key: str,
) -> HealRequest:
    known = tools if isinstance(tools, KnownTools) else KnownTools(tools, policies)
    return HealRequest(messages, config, known, messages_key)
