"""Configs as callers give them: checked at the earliest moment, and turned into plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable.errors import InvalidConfig

_LONGEST_AGE = timedelta(days=700_000)
"""Older than anything stored. So long ago Python and Postgres still have a time; longer ago they may not."""

_THREAD_EXAMPLE = '{"configurable": {"thread_id": "..."}}'


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
        InvalidConfig: The config has no usable thread_id, or an id that is not text.
    """
    try:
        configurable = config.get("configurable") or {}
        thread_id = configurable["thread_id"]
    except (KeyError, TypeError, AttributeError):
        raise InvalidConfig(
            f"the config has no thread_id: pass {_THREAD_EXAMPLE}, got {config!r:.200}"
        ) from None
    return CheckpointRef(
        require_thread_id(thread_id),
        _optional_text(configurable.get("checkpoint_ns"), "checkpoint_ns"),
        _optional_text(configurable.get("checkpoint_id"), "checkpoint_id") or None,
    )


def stored_checkpoint_ref(config: RunnableConfig) -> tuple[CheckpointRef, str]:
    """Return what a config points at, which must include one checkpoint's id.

    Raises:
        InvalidConfig: The config has no thread_id, or no checkpoint_id.
    """
    ref = checkpoint_ref(config)
    if ref.checkpoint_id is None:
        raise InvalidConfig(
            "the config has no checkpoint_id, so there is no checkpoint to hang this on: "
            "pass the config that put, or a tuple of get_tuple or list, gave"
        )
    return ref, ref.checkpoint_id


def before_ref(before: RunnableConfig, config: RunnableConfig | None) -> CheckpointRef:
    """Return the checkpoint that `before` names; its thread may be the listed config's, its namespace any.

    The runtime lists a subgraph's namespace before a checkpoint of the root's, naming neither.

    Raises:
        InvalidConfig: `before` names no checkpoint.
    """
    try:
        configurable = dict(before.get("configurable") or {})
    except (AttributeError, TypeError, ValueError):
        configurable = {}
    if not configurable.get("checkpoint_id"):
        raise InvalidConfig(
            'before names no checkpoint: pass {"configurable": {"checkpoint_id": "..."}}, '
            f"got {before!r:.200}"
        )
    listed = config.get("configurable", {}) if config is not None else {}
    inherited = {"thread_id": listed["thread_id"]} if "thread_id" in listed else {}
    return checkpoint_ref({"configurable": inherited | configurable})


def require_thread_id(thread_id: Any) -> str:
    """Return a thread's id as text; ints and UUIDs may come from direct callers.

    Raises:
        InvalidConfig: It is None, empty, or cannot be stored.
    """
    if thread_id is None or thread_id == "":
        raise InvalidConfig(f"thread_id is {thread_id!r}: pass {_THREAD_EXAMPLE}")
    return require_text(str(thread_id), "thread_id")


def require_text(value: Any, name: str) -> str:
    """Return a key's text.

    Raises:
        InvalidConfig: It is not text, or holds what a Postgres key cannot: NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidConfig(f"{name} must be a str, got {value!r:.200}")
    if "\0" in value:
        raise InvalidConfig(f"{name} holds a NUL character, which no Postgres key can: {value!r:.200}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidConfig(f"{name} holds a lone surrogate, which is no text: {value!a:.200}") from None
    return value


def require_schema(schema: Any) -> str:
    """Return the name of a database schema.

    Raises:
        InvalidConfig: It is empty, or no text.
    """
    if schema == "":
        raise InvalidConfig('schema must name a database schema, got ""')
    return require_text(schema, "schema")


def require_ids(ids: Any, name: str) -> list[str]:
    """Return a sequence of ids as texts.

    Raises:
        TypeError: It is one str, which would be read as a sequence of its letters.
        InvalidConfig: It is no sequence of ids.
    """
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"{name} must be a sequence of ids, not one {type(ids).__name__}: pass [{ids!r}]")
    if not isinstance(ids, Sequence):
        try:
            ids = list(ids)
        except TypeError:
            raise InvalidConfig(f"{name} must be a sequence of ids, got {ids!r:.200}") from None
    return list(dict.fromkeys(require_text(str(i), name) for i in ids))


@dataclass(frozen=True, slots=True)
class Policy:
    """What a prune keeps."""

    keep_last: int
    """Checkpoints that each namespace keeps; 0 for a thread that goes wholly."""
    older_than: timedelta | None


def require_age(age: Any, name: str) -> timedelta | None:
    """Return an age, which may be None; one older than anything stored as such a one that can be reckoned with.

    Raises:
        InvalidConfig: It is no timedelta, or negative.
    """
    if age is None:
        return None
    if not isinstance(age, timedelta):
        raise InvalidConfig(f"{name} must be a timedelta, an age, got {age!r:.200}")
    if age < timedelta(0):
        raise InvalidConfig(f"{name} must not be negative, got {age!r}")
    return min(age, _LONGEST_AGE)


def require_policy(strategy: Any, keep_last: Any, older_than: Any) -> Policy:
    """Return what a prune keeps.

    Raises:
        InvalidConfig: The strategy is unknown, or a number or an age cannot be used.
    """
    if strategy == "delete_all":  # as the Agent Server says
        strategy = "delete"
    if strategy not in ("keep_latest", "delete"):
        raise InvalidConfig(f'unknown prune strategy {strategy!r}: pass "keep_latest" or "delete"')
    older_than = require_age(older_than, "older_than")
    if keep_last is not None and (
        isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1
    ):
        raise InvalidConfig(
            f'keep_last must be an int >= 1, got {keep_last!r:.200}; strategy="delete" keeps none'
        )
    if strategy == "delete":
        if keep_last is not None or older_than is not None:
            raise InvalidConfig(
                'strategy="delete" deletes everything: it takes neither keep_last nor older_than'
            )
        return Policy(0, None)
    return Policy(1 if keep_last is None else keep_last, older_than)


def require_sweep_policy(keep_last: Any, older_than: Any) -> Policy:
    """Return what a sweep keeps.

    Raises:
        InvalidConfig: Neither is given, or one cannot be used.
    """
    if keep_last is None and older_than is None:
        raise InvalidConfig(
            "say what a sweep may delete: pass older_than=timedelta(...), keep_last=..., or both"
        )
    return require_policy("keep_latest", keep_last, older_than)


def require_seconds(seconds: Any, name: str) -> float:
    """Return how long to wait.

    Raises:
        InvalidConfig: It is no number of seconds.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise InvalidConfig(f"{name} must be seconds, a number >= 0, got {seconds!r:.200}")
    return seconds


def require_prepare_threshold(threshold: Any) -> int | None:
    """Return how often a statement runs before it is prepared, or None.

    Raises:
        InvalidConfig: It is neither None nor a count.
    """
    if threshold is not None and (
        isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0
    ):
        raise InvalidConfig(f"prepare_threshold must be None or an int >= 0, got {threshold!r:.200}")
    return threshold


def require_pool_sizes(min_size: Any, max_size: Any) -> tuple[int, int]:
    """Return how many connections a pool keeps, and opens at most.

    Raises:
        InvalidConfig: They are no such counts.
    """
    counts = all(isinstance(size, int) and not isinstance(size, bool) for size in (min_size, max_size))
    if not counts or not 0 <= min_size <= max_size or max_size < 1:
        raise InvalidConfig(
            "pool sizes must be ints, 0 <= min_size <= max_size, and max_size at least 1, got "
            f"min_size={min_size!r:.100}, max_size={max_size!r:.100}"
        )
    return min_size, max_size


def require_cache_bytes(size: Any) -> int:
    """Return how many bytes of segments to keep.

    Raises:
        InvalidConfig: It is no number of bytes.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidConfig(f"segment_cache_bytes must be an int >= 0, got {size!r:.200}")
    return size


def require_hash_key(key: Any) -> bytes | None:
    """Return the key of segments' hashes, if there is one.

    Raises:
        InvalidConfig: It is no bytes, or too few or too many; the message does not show it.
    """
    if key is None:
        return None
    if not isinstance(key, bytes) or not 16 <= len(key) <= 64:
        raise InvalidConfig(
            "hash_key must be 16 to 64 secret bytes, as secrets.token_bytes(32) makes them, and not the cipher's key"
        )
    return key


def require_limit(limit: Any) -> int | None:
    """Return how many checkpoints to list at most.

    Raises:
        InvalidConfig: It is neither None nor a count.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidConfig(f"limit must be None or an int >= 0, got {limit!r:.200}")
    return limit


def require_filter(filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a metadata filter as plain JSON values; None and {} filter nothing.

    Raises:
        InvalidConfig: It is not a JSON object.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        raise InvalidConfig(f"filter must be a dict of metadata, got {filter!r:.200}")
    for key, value in filter.items():
        _require_json(key, value)
    return dict(filter)


def _require_json(key: Any, value: Any) -> None:
    if not isinstance(key, str):
        raise InvalidConfig(f"filter has the key {key!r:.200}: metadata keys are str")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InvalidConfig(
            f"filter[{key!r}] is not JSON ({exc}): filter by str, int, float, bool, None, or lists and "
            "dicts of them"
        ) from exc


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else require_text(value, name)


def filter_matches(metadata: Any, wanted: Any) -> bool:
    """Tell whether metadata contains what a filter asks for, as jsonb `@>` does.

    A dict contains every wanted key with a value that contains the wanted one; a list has, for every
    wanted element, one that contains it; anything else is equal. None matches only a None that is there.
    """
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            key in metadata and filter_matches(metadata[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return isinstance(metadata, (list, tuple)) and all(
            any(filter_matches(element, value) for element in metadata) for value in wanted
        )
    if isinstance(wanted, bool) or isinstance(metadata, bool):
        return wanted is metadata  # True is not 1 in JSON
    return bool(metadata == wanted)


def indexable(value: Any) -> bool:
    """Tell whether jsonb holds a metadata value exactly, so that a filter on it can be decided there."""
    if value is None or isinstance(value, bool):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63  # what serializers hold, and orjson
    if type(value) is float:
        return math.isfinite(value)
    # Longer text would store the metadata twice for a filter nobody asks for.
    return type(value) is str and len(value) <= 256 and value.isascii() and "\0" not in value
