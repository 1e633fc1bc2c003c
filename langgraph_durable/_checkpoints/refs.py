"""The keys of checkpoints: from configs as callers give them, and from ULIDs."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable._checkpoints.ulids import parse_ulid
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import load
from langgraph_durable._validation import require_text, require_thread_id
from langgraph_durable.errors import InvalidConfigError

FIND_BY_ULID = load(__package__, "find_by_ulid")
FIND_ULID = load(__package__, "find_ulid")

# --- configs ---


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """What a config names: a thread, perhaps a namespace, perhaps one checkpoint."""

    thread_id: str
    checkpoint_ns: str | None
    checkpoint_id: str | None

    @property
    def namespace(self) -> str:
        """The namespace; the root graph's if the config names none."""
        return self.checkpoint_ns or ""


def checkpoint_ref(config: RunnableConfig) -> CheckpointRef:
    """Return what a config names.

    Raises:
        InvalidConfigError: The config has no usable thread_id, or an id that is not text.
    """
    try:
        configurable = config.get("configurable") or {}
        thread_id = configurable["thread_id"]
    except (KeyError, TypeError, AttributeError):
        raise InvalidConfigError(
            f'the config has no thread_id: {config!r:.200}. Pass {{"configurable": {{"thread_id": "..."}}}}.'
        ) from None
    return CheckpointRef(
        require_thread_id(thread_id),
        _optional_text(configurable.get("checkpoint_ns"), "checkpoint_ns"),
        _optional_text(configurable.get("checkpoint_id"), "checkpoint_id") or None,
    )


def stored_checkpoint_ref(config: RunnableConfig) -> tuple[CheckpointRef, str]:
    """Return what a config names, which must include the id of a checkpoint.

    Raises:
        InvalidConfigError: The config has no thread_id, or no checkpoint_id.
    """
    ref = checkpoint_ref(config)
    if ref.checkpoint_id is None:
        raise InvalidConfigError(
            f"the config has no checkpoint_id, so it names no checkpoint: thread {ref.thread_id!r}. Pass the config "
            "that put returned, or that of a tuple from get_tuple or list."
        )
    return ref, ref.checkpoint_id


def before_ref(before: RunnableConfig, config: RunnableConfig | None) -> CheckpointRef:
    """Return the checkpoint that `before` names.

    Its thread may be left to the listed config, and its namespace may be any: the runtime lists a subgraph's
    namespace before a checkpoint of the root's, and names neither.

    Raises:
        InvalidConfigError: `before` names no checkpoint.
    """
    try:
        configurable = dict(before.get("configurable") or {})
    except (AttributeError, TypeError, ValueError):
        configurable = {}
    if not configurable.get("checkpoint_id"):
        raise InvalidConfigError(
            f"before names no checkpoint: {before!r:.200}. "
            'Pass {"configurable": {"checkpoint_id": "..."}}.'
        )
    listed = config.get("configurable", {}) if config is not None else {}
    inherited = {"thread_id": listed["thread_id"]} if "thread_id" in listed else {}
    return checkpoint_ref({"configurable": inherited | configurable})


def config_of(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else require_text(value, name)


# --- ULIDs ---


async def resolve_checkpoint_id(db: Database, ref: CheckpointRef, checkpoint_id: str) -> str:
    """Return the runtime's id of a checkpoint that may be named by its ULID; an unknown one unchanged.

    Round trips: none for an id that cannot be a ULID, else 1.
    """
    ulid = parse_ulid(checkpoint_id)
    if ulid is None:
        return checkpoint_id
    [(found,)] = await db.fetch(
        FIND_BY_ULID,
        {"thread_id": ref.thread_id, "checkpoint_ns": ref.namespace, "id": checkpoint_id, "ulid": ulid},
    )
    return str(found)


async def find_ulid(db: Database, ref: CheckpointRef, checkpoint_id: str) -> uuid.UUID | None:
    """Return the ULID of a stored checkpoint, in any namespace if `ref` names none.

    Round trips: 1.
    """
    key = {"thread_id": ref.thread_id, "checkpoint_ns": ref.checkpoint_ns, "checkpoint_id": checkpoint_id}
    rows = await db.fetch(FIND_ULID, key)
    return rows[0][0] if rows else None
