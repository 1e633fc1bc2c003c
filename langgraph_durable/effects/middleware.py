"""Effects in agents of langchain's `create_agent`; needs the extra `[agents]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware

from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.effects.tools import ToolWrapper

_DEFAULT = EffectPolicy()


class EffectMiddleware(AgentMiddleware[Any, Any]):
    """Makes the bodies of an agent's tools effects. Put it last, so that other middleware's retries wrap it."""

    def __init__(
        self,
        log: EffectLog,
        policies: Mapping[str, EffectPolicy] | None = None,
        *,
        default: EffectPolicy = _DEFAULT,
        trust_hints: bool = False,
    ) -> None:
        """Create the middleware.

        Args:
            log: The effect log of the agent's checkpointer: `saver.effects`.
            policies: Policies by the tool's name.
            default: The policy of the other tools.
            trust_hints: Whether tools' own hints may make `default` laxer; see ToolWrapper.

        Raises:
            InvalidConfigError: `log` is not an effect log, or a policy is not an EffectPolicy.
        """
        super().__init__()
        self._wrapper = ToolWrapper(log, policies, default=default, trust_hints=trust_hints)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool call as an effect."""
        return self._wrapper.wrap_tool_call(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call as an effect."""
        return await self._wrapper.awrap_tool_call(request, handler)
