"""TODO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable._validation import THREAD_EXAMPLE, require_text, require_thread_id
from langgraph_durable.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """What a config points at: a thread, perhaps a namespace, perhaps one checkpoint."""

    thread_id: str
    checkpoint_ns: str | None
    checkpoint_id: str | None

    @property
    def namespace(self) -> str:
        """The namespace, the root graph's where the config names none."""
        return self.checkpoint_ns or ""


def checkpoint_ref(config: RunnableConfig) -> CheckpointRef:
    """Return what a config points at.

    Raises:
        InvalidConfigError: The config has no usable thread_id, or an id that is not text.
    """
    try:
        configurable = config.get("configurable") or {}
        thread_id = configurable["thread_id"]
    except (KeyError, TypeError, AttributeError):
        raise InvalidConfigError(
            f"the config has no thread_id: pass {THREAD_EXAMPLE}, got {config!r:.200}"
        ) from None
    return CheckpointRef(
        require_thread_id(thread_id),
        _optional_text(configurable.get("checkpoint_ns"), "checkpoint_ns"),
        _optional_text(configurable.get("checkpoint_id"), "checkpoint_id") or None,
    )


def stored_checkpoint_ref(config: RunnableConfig) -> tuple[CheckpointRef, str]:
    """Return what a config points at, which must include one checkpoint's id.

    Raises:
        InvalidConfigError: The config has no thread_id, or no checkpoint_id.
    """
    ref = checkpoint_ref(config)
    if ref.checkpoint_id is None:
        raise InvalidConfigError(
            "the config has no checkpoint_id, so there is no checkpoint to hang this on: "
            "pass the config that put, or a tuple of get_tuple or list, gave"
        )
    return ref, ref.checkpoint_id


def before_ref(before: RunnableConfig, config: RunnableConfig | None) -> CheckpointRef:
    """Return the checkpoint that `before` names; its thread may be the listed config's, its namespace any.

    The runtime lists a subgraph's namespace before a checkpoint of the root's, naming neither.

    Raises:
        InvalidConfigError: `before` names no checkpoint.
    """
    try:
        configurable = dict(before.get("configurable") or {})
    except (AttributeError, TypeError, ValueError):
        configurable = {}
    if not configurable.get("checkpoint_id"):
        raise InvalidConfigError(
            'before names no checkpoint: pass {"configurable": {"checkpoint_id": "..."}}, '
            f"got {before!r:.200}"
        )
    listed = config.get("configurable", {}) if config is not None else {}
    inherited = {"thread_id": listed["thread_id"]} if "thread_id" in listed else {}
    return checkpoint_ref({"configurable": inherited | configurable})


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else require_text(value, name)
