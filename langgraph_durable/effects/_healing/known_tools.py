"""What is known of a tool by its name: its policy, and how its result becomes a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_durable.effects._protocol.executor import policy_named, policy_of
from langgraph_durable.effects.policy import EffectPolicy

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_BODIES = ("func", "coroutine", "_run", "_arun")


@dataclass(frozen=True, slots=True)
class KnownTool:
    """What is known of a tool.

    Attributes:
        policy: Its policy; None if it may not be an effect.
        has_artifact: Whether it returns a pair of content and artifact; None if that is not known.
    """

    policy: EffectPolicy | None
    has_artifact: bool | None = None


class KnownTools:
    """Finds tools by their names: among those given, and those that were seen since."""

    def __init__(
        self,
        tools: Iterable[Any] = (),
        policies: Mapping[str, EffectPolicy] | None = None,
        default: EffectPolicy | None = None,
    ) -> None:
        """Create the directory.

        Args:
            tools: The tools; functions that are not tools are known by their names.
            policies: Policies by the tool's name, of tools without @effect.
            default: The policy of tools without @effect that `policies` does not have; None if these are not effects.
        """
        self._policies = dict(policies or {})
        self._default = default
        self._tools: dict[str, Any] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Any) -> None:
        """Add a tool."""
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        if isinstance(name, str):
            self._tools[name] = tool

    def find(self, name: str) -> KnownTool:
        """Return what is known of a tool: its decorator's policy, the one given for its name, or the default."""
        tool = self._tools.get(name)
        response_format = getattr(tool, "response_format", None)
        has_artifact = response_format == "content_and_artifact" if response_format is not None else None
        own = policy_of(tool) or decorated_policy(tool) if tool is not None else None
        policy = own or self._policies.get(name)
        if policy is None and tool is None:
            policy = policy_named(name)
        return KnownTool(policy or self._default, has_artifact)


def decorated_policy(tool: BaseTool | Any) -> EffectPolicy | None:
    """Return the policy of a tool whose body is decorated with @effect."""
    bodies = (getattr(tool, name, None) for name in _BODIES)
    return next((policy for body in bodies if (policy := policy_of(body)) is not None), None)
