"""LangGraph's node cache in the saver's database: `builder.compile(checkpointer=saver, cache=DurableCache(saver))`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace, ValueT
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import decode, encode, pack
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.statement import load
from langgraph_durable._validation import require_seconds
from langgraph_durable.errors import CheckpointCorruptedError, InvalidConfigError
from langgraph_durable.saver import DurableSaver

__all__ = ["DurableCache"]

GET_CACHED = load(__package__, "get_cached")
SET_CACHED = load(__package__, "set_cached")
CLEAR_CACHED = load(__package__, "clear_cached")

_logger = logging.getLogger("langgraph_durable")


class DurableCache(BaseCache[ValueT]):
    """A cache for nodes and tasks with a CachePolicy, shared by all processes that use the database.

    It uses the saver's connections, schema and retries. Values expire by the server's clock. A value that cannot be
    read, because it was stored with another key or by other code, counts as not cached.
    """

    def __init__(self, saver: DurableSaver, *, serde: SerializerProtocol | None = None) -> None:
        """Make a cache.

        Args:
            saver: The saver, set up and open. The cache can be used until it is closed.
            serde: The serializer of the values; the saver's if None, so that what a saver encrypts is encrypted here.

        Raises:
            InvalidConfigError: `saver` is not a DurableSaver.
        """
        context = getattr(saver, "durable_context", None)
        if context is None:
            raise InvalidConfigError(f"a DurableCache needs a DurableSaver, got {type(saver).__name__}")
        super().__init__(serde=serde or saver.serde)
        self._context = context

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Return the cached values of keys. Round trips: 1."""
        return run_sync(_get(self._context.db, self.serde, keys))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Return the cached values of keys; see `get`."""
        return await _get(self._context.adb, self.serde, keys)

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Store values, each with the seconds it lives, or None. Round trips: 1.

        Raises:
            UnserializableValueError: A value cannot be serialized. Nothing is stored.
            InvalidConfigError: A time to live is negative, or not a number.
        """
        run_sync(_set(self._context.db, self.serde, pairs))

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Store values; see `set`."""
        await _set(self._context.adb, self.serde, pairs)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the values of namespaces, or, if None, all. Round trips: 1."""
        run_sync(_clear(self._context.db, namespaces))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the values of namespaces; see `clear`."""
        await _clear(self._context.adb, namespaces)


@measured("cache_get")
async def _get(db: Database, serde: SerializerProtocol, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
    if not keys:
        return {}
    wanted: dict[tuple[bytes, bytes], FullKey] = {}
    for namespace, key in keys:
        wanted[_hash(namespace), _hash((key,))] = (tuple(namespace), key)
    params = {"namespaces": [n for n, _ in wanted], "keys": [k for _, k in wanted]}
    found = {}
    for namespace_hash, key_hash, kind, value in await db.fetch(GET_CACHED, params):
        full_key = wanted[bytes(namespace_hash), bytes(key_hash)]
        try:
            found[full_key] = decode(serde, (kind, bytes(value)), f"the cached value of {full_key!r:.200}")
        except CheckpointCorruptedError as exc:
            _logger.warning("the node runs, since its cached result cannot be read: %s", exc)
    return found


@measured("cache_set")
async def _set(
    db: Database, serde: SerializerProtocol, pairs: Mapping[FullKey, tuple[Any, int | timedelta | None]]
) -> None:
    rows = {}
    for (namespace, key), (value, ttl) in pairs.items():
        seconds = None if ttl is None else float(require_seconds(ttl, "ttl"))
        kind, data = pack(encode(serde, value, f"the value to cache for {key!r:.200}"))
        rows[_hash(namespace), _hash((key,))] = kind, data, seconds
    if rows:
        params = {
            "namespaces": [n for n, _ in rows],
            "keys": [k for _, k in rows],
            "types": [kind for kind, _, _ in rows.values()],
            "values": [data for _, data, _ in rows.values()],
            "seconds": [seconds for _, _, seconds in rows.values()],
        }
        await db.fetch(SET_CACHED, params)


@measured("cache_clear")
async def _clear(db: Database, namespaces: Sequence[Namespace] | None) -> None:
    hashes = None if namespaces is None else [_hash(namespace) for namespace in namespaces]
    await db.fetch(CLEAR_CACHED, {"namespaces": hashes})


def _hash(parts: Sequence[str]) -> bytes:
    """Return a hash of texts, which may contain what Postgres cannot store."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.digest()
