"""Effects in agents of langchain's `create_agent`; needs the extra `[agents]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Optional

from langchain.agents.middleware import AgentMiddleware
from langchain_core.runnables import RunnableConfig

from langgraph_durable.effects._healing.heal import HealedMessages
from langgraph_durable.effects._healing.known_tools import KnownTools
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.effects.tools import ToolWrapper

_DEFAULT = EffectPolicy()


class EffectMiddleware(AgentMiddleware[Any, Any]):
    """Makes the bodies of an agent's tools effects, and answers tool calls that a step left without an answer.

    Put it last, so that other middleware's retries wrap it.
    """

    def __init__(
        self,
        log: EffectLog,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
        tools: Iterable[Any] = (),
    ) -> None:
        """Create the middleware.

        Args:
            log: The effect log of the agent's checkpointer: `saver.effects`.
            policies: Policies by the tool's name.
            default: The policy of the other tools.
            trust_hints: Whether tools' own hints may make `default` laxer; see ToolWrapper.
            tools: The agent's tools. Only needed so that a call that was left without an answer is verified by
                the policy of a tool with @effect whose function has another name than the tool.

        Raises:
            InvalidConfigError: `log` is not an effect log, or a policy is not an EffectPolicy.
        """
        super().__init__()
        self._log = log
        self._wrapper = ToolWrapper(log, policies, default=default, trust_hints=trust_hints)
        # A tool whose hints are trusted may be read-only, and have run without a record.
        self._known = KnownTools(tools, policies, None if trust_hints else default)

    # LangGraph knows the parameter `config` by this spelling of its type.
    def before_model(
        self,
        state: Any,
        runtime: Any,
        config: Optional[RunnableConfig] = None,  # noqa: UP045
    ) -> Any:
        """Answer the tool calls that have no answer; see `EffectLog.heal`."""
        return _command(self._log.heal(_messages(state), config, tools=self._known))

    async def abefore_model(
        self,
        state: Any,
        runtime: Any,
        config: Optional[RunnableConfig] = None,  # noqa: UP045
    ) -> Any:
        """Answer the tool calls that have no answer; see `EffectLog.heal`."""
        return _command(await self._log.aheal(_messages(state), config, tools=self._known))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect."""
        self._known.add(request.tool)
        return self._wrapper.wrap_tool_call(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect."""
        self._known.add(request.tool)
        return await self._wrapper.awrap_tool_call(request, handler)


def _messages(state: Any) -> Any:
    return state["messages"] if isinstance(state, Mapping) else state.messages


def _command(healed: HealedMessages) -> Any:
    """Return the update of a node: a dict, or a Command if a channel is written to more than once."""
    if healed.command is None:
        return None
    writes: Any = healed.command.update
    return dict(writes) if len(dict(writes)) == len(writes) else healed.command
