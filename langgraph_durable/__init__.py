"""A LangGraph checkpoint saver on Postgres that survives what production does to agents."""

from typing import TYPE_CHECKING, Any

from langgraph_durable.effects import (
    IDEMPOTENT,
    READ_ONLY,
    EffectPolicy,
    Happened,
    NotHappened,
    Undetermined,
    current_effect,
    effect,
)
from langgraph_durable.errors import DurableError, EffectError, EffectUnknownError
from langgraph_durable.saver import DurableSaver

if TYPE_CHECKING:
    from langgraph_durable.effects.middleware import EffectMiddleware

__version__ = "0.1.0"

__all__ = [
    "IDEMPOTENT",
    "READ_ONLY",
    "DurableError",
    "DurableSaver",
    "EffectError",
    "EffectMiddleware",
    "EffectPolicy",
    "EffectUnknownError",
    "Happened",
    "NotHappened",
    "Undetermined",
    "__version__",
    "current_effect",
    "effect",
]


def __getattr__(name: str) -> Any:
    if name == "EffectMiddleware":  # imports langchain, which most applications do not need
        try:
            from langgraph_durable.effects.middleware import EffectMiddleware
        except ImportError as exc:
            raise ImportError(
                "EffectMiddleware needs langchain: pip install 'langgraph-durable[agents]'"
            ) from exc
        return EffectMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
