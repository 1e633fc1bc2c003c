"""Checks of arguments, made before anything is sent. Each returns a plain value or raises InvalidConfigError."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from langgraph_durable.errors import InvalidConfigError

_LONGEST_AGE = timedelta(days=700_000)
"""Older than anything stored. Now minus more than this may be out of range for Python or Postgres."""

THREAD_EXAMPLE = '{"configurable": {"thread_id": "..."}}'


def require_thread_id(thread_id: Any) -> str:
    """Return a thread's id as text. Direct callers may pass ints and UUIDs.

    Raises:
        InvalidConfigError: It is None or empty, or Postgres cannot store it.
    """
    if thread_id is None or thread_id == "":
        raise InvalidConfigError(f"thread_id is {thread_id!r}: pass {THREAD_EXAMPLE}")
    return require_text(str(thread_id), "thread_id")


def require_text(value: Any, name: str) -> str:
    """Return a text that Postgres can store.

    Raises:
        InvalidConfigError: It is not a str, or contains NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidConfigError(f"{name} must be a str, got {value!r:.200}")
    if "\0" in value:
        raise InvalidConfigError(f"{name} holds a NUL character, which Postgres cannot store: {value!r:.200}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidConfigError(
                f"{name} holds a lone surrogate, which Postgres cannot store: {value!a:.200}"
            ) from None
    return value


def require_schema(schema: Any) -> str:
    """Return the name of a database schema.

    Raises:
        InvalidConfigError: It is empty or not a str.
    """
    if schema == "":
        raise InvalidConfigError('schema must name a database schema, got ""')
    return require_text(schema, "schema")


def require_ids(ids: Any, name: str) -> list[str]:
    """Return a sequence of ids as texts, without duplicates.

    Raises:
        TypeError: It is one str, which is also a sequence of strs.
        InvalidConfigError: It is not a sequence of ids.
    """
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"{name} must be a sequence of ids, not one {type(ids).__name__}: pass [{ids!r}]")
    if not isinstance(ids, Sequence):
        try:
            ids = list(ids)
        except TypeError:
            raise InvalidConfigError(f"{name} must be a sequence of ids, got {ids!r:.200}") from None
    return list(dict.fromkeys(require_text(str(i), name) for i in ids))


def require_age(age: Any, name: str) -> timedelta | None:
    """Return an age, which may be None, limited to one that timestamps can represent.

    Raises:
        InvalidConfigError: It is not a timedelta, or negative.
    """
    if age is None:
        return None
    if not isinstance(age, timedelta):
        raise InvalidConfigError(f"{name} must be a timedelta, an age, got {age!r:.200}")
    if age < timedelta(0):
        raise InvalidConfigError(f"{name} must not be negative, got {age!r}")
    return min(age, _LONGEST_AGE)


def require_seconds(duration: Any, name: str) -> float:
    """Return a duration in seconds, given as a number of seconds or a timedelta.

    Raises:
        InvalidConfigError: It is neither, or negative.
    """
    if isinstance(duration, timedelta):
        seconds: Any = duration.total_seconds()
    else:
        seconds = duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise InvalidConfigError(f"{name} must be seconds or a timedelta, >= 0, got {duration!r:.200}")
    return seconds


def require_prepare_threshold(threshold: Any) -> int | None:
    """Return how often a statement runs before it is prepared; None for never.

    Raises:
        InvalidConfigError: It is neither None nor a count.
    """
    if threshold is not None and (
        isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0
    ):
        raise InvalidConfigError(f"prepare_threshold must be None or an int >= 0, got {threshold!r:.200}")
    return threshold


def require_pool_sizes(min_size: Any, max_size: Any) -> tuple[int, int]:
    """Return how many connections a pool keeps, and opens at most.

    Raises:
        InvalidConfigError: They are not counts, or not 0 <= min_size <= max_size with max_size >= 1.
    """
    counts = all(isinstance(size, int) and not isinstance(size, bool) for size in (min_size, max_size))
    if not counts or not 0 <= min_size <= max_size or max_size < 1:
        raise InvalidConfigError(
            "pool sizes must be ints, 0 <= min_size <= max_size, and max_size at least 1, got "
            f"min_size={min_size!r:.100}, max_size={max_size!r:.100}"
        )
    return min_size, max_size


def require_cache_bytes(size: Any) -> int:
    """Return how many bytes of segments to cache.

    Raises:
        InvalidConfigError: It is not a number of bytes.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidConfigError(f"segment_cache_bytes must be an int >= 0, got {size!r:.200}")
    return size


def require_segment_key(key: Any) -> bytes | None:
    """Return the key of the segments' hashes, if there is one.

    Raises:
        InvalidConfigError: It is not 16 to 64 bytes. The message does not contain it.
    """
    if key is None:
        return None
    if not isinstance(key, bytes) or not 16 <= len(key) <= 64:
        raise InvalidConfigError(
            "segment_key must be 16 to 64 secret bytes: pass secrets.token_bytes(32), stored once, not the cipher's key"
        )
    return key


def require_limit(limit: Any) -> int | None:
    """Return how many checkpoints to list at most.

    Raises:
        InvalidConfigError: It is neither None nor a count.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidConfigError(f"limit must be None or an int >= 0, got {limit!r:.200}")
    return limit
