"""What `list` and `alist` iterate over: pages of stored checkpoints, decoded, filtered and counted off."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg.types.json import Jsonb

from langgraph_durable._checkpoints import get_statements as sql
from langgraph_durable._checkpoints.codec import Codec, decode_checkpoint
from langgraph_durable._checkpoints.filters import filter_matches, indexable, require_filter
from langgraph_durable._checkpoints.gc_pause import gc_paused
from langgraph_durable._checkpoints.message_cache import copying_messages
from langgraph_durable._checkpoints.read import _read_page, find_ulid, resolve_checkpoint_id
from langgraph_durable._checkpoints.refs import CheckpointRef, before_ref, checkpoint_ref
from langgraph_durable._checkpoints.rows import (
    StoredCheckpoint,
)
from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.statement import Statement
from langgraph_durable._segments.reading import SegmentReader
from langgraph_durable._segments.values import SegmentedValue
from langgraph_durable._validation import require_limit
from langgraph_durable.errors import (
    InvalidConfigError,
)

_AT_ONCE = 256 << 10
"""Bytes, as stored, of the checkpoints that are decoded one after the other before the first is given away."""


class Listing:
    """One listing, in one direction, once."""

    def __init__(
        self,
        walk: CheckpointWalk,
        reader: SegmentReader,
        serde: SerializerProtocol,
        wanted: dict[str, Any],
        limit: int | None,
        metrics: Metrics,
    ) -> None:
        self._walk = walk
        self._reader = reader
        self._serde = serde
        self._wanted = wanted
        self._left = limit
        self.metrics = metrics

    def iterate(self, db: Database) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints, over a BlockingDatabase."""
        while page := run_sync(self._next_page(db)):
            while page:
                found = self._decode_some(page)
                while found:  # popped, so that what was yielded is not kept
                    yield found.popleft()

    async def aiterate(self, db: Database) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints, over an AsyncDatabase."""
        while page := await self._next_page(db):
            while page:
                found = self._decode_some(page)
                while found:  # popped, so that what was yielded is not kept
                    yield found.popleft()

    async def _next_page(self, db: Database) -> list[StoredCheckpoint]:
        """Fetch a page, its newest checkpoint last."""
        if self._left == 0:
            return []
        size = self._walk.page_size
        # A filter may reject what the page holds; without one the limit is what is needed.
        if self._left is not None and not self._wanted:
            size = min(size, self._left)
        page = await self._fetch(db, size)
        if len(page) > 1:  # in one checkpoint, no message comes again
            self._serde = copying_messages(self._serde)
        return page[::-1]

    @measured("list")
    async def _fetch(self, db: Database, size: int) -> list[StoredCheckpoint]:
        return await self._walk.next_page(db, self._reader, size)

    def _decode_some(self, page: list[StoredCheckpoint]) -> deque[CheckpointTuple]:
        """Take checkpoints of some size off a page, newest first, and return those that match.

        What cannot be decoded is raised once those before it are out.
        """
        found: deque[CheckpointTuple] = deque()
        size = 0
        with gc_paused():
            while page and size < _AT_ONCE:
                try:
                    accepted = self._accept(page[-1])
                except Exception:
                    if not found:
                        raise
                    break
                size += _size(page.pop())
                if accepted is not None:
                    found.append(accepted)
        return found

    def _accept(self, stored: StoredCheckpoint) -> CheckpointTuple | None:
        if self._left == 0:
            return None
        found = decode_checkpoint(self._serde, stored)
        if not filter_matches(found.metadata, self._wanted):
            return None
        if self._left is not None:
            self._left -= 1
        return found


def _size(stored: StoredCheckpoint) -> int:
    """Return how many bytes a checkpoint has, about."""
    sizes = [len(part[1]) for part in (stored.checkpoint, stored.metadata) if part is not None]
    for value in stored.values.values():
        sizes += map(len, value.parts) if isinstance(value, SegmentedValue) else [len(value[1])]
    sizes += [len(write.value[1]) for writes in (stored.writes, stored.parent_sends) for write in writes]
    return sum(sizes)


_LAST_ULID = uuid.UUID(int=2**128 - 1)


class CheckpointWalk:
    """A listing, newest first, a page at a time; between pages it holds neither connection nor snapshot."""

    page_size = 64

    def __init__(
        self, config: CheckpointRef | None, before: CheckpointRef | None, filter_: dict[str, Any]
    ) -> None:
        self._config = config
        self._before = before
        self._filter = filter_
        self._params: dict[str, Any] | None = None
        self._ended = False

    async def next_page(self, db: Database, reader: SegmentReader, size: int) -> list[StoredCheckpoint]:
        """Fetch the next `size` checkpoints; fewer, or none, at the end.

        The filter is decided here only as far as the database can: its answers contain every match.

        Raises:
            InvalidConfigError: `before` names a checkpoint that is not stored and whose id tells no time.

        Round trips: 1; 1 more if segments are not at hand, each of which is fetched once for the whole page; on the
        first page 1 more for a `before`, 1 more for an id that is a ULID.
        """
        if self._ended:
            return []
        if self._params is None:
            self._params = await self._first_params(db)
        self._params["size"] = size
        page = await _read_page(db, reader, self._statement(), self._params)
        self._ended = len(page) < size
        if page:
            last = page[-1]
            self._params |= {
                "cursor_ulid": last.ulid,
                "cursor_thread": last.thread_id,
                "cursor_ns": last.checkpoint_ns,
            }
        return page

    def _statement(self) -> Statement:
        config = self._config
        if config is None:
            return sql.LIST_ALL
        if config.checkpoint_ns is None:
            return sql.LIST_ONE_IN_THREAD if config.checkpoint_id else sql.LIST_THREAD
        return sql.LIST_ONE_IN_NAMESPACE if config.checkpoint_id else sql.LIST_NAMESPACE

    async def _first_params(self, db: Database) -> dict[str, Any]:
        decidable = {k: v for k, v in self._filter.items() if indexable(k) and indexable(v)}
        params: dict[str, Any] = {
            "before": _LAST_ULID,
            "cursor_ulid": _LAST_ULID,
            "cursor_thread": "",
            "cursor_ns": "",
            "filter": Jsonb(decidable),
            "indexed_metadata": list(decidable),
        }
        if (config := self._config) is not None:
            params |= {"thread_id": config.thread_id, "checkpoint_ns": config.checkpoint_ns}
            if config.checkpoint_id is not None:
                params["checkpoint_id"] = await resolve_checkpoint_id(db, config, config.checkpoint_id)
        if self._before is not None:
            params["before"] = await _place_of(db, self._before)
        return params


async def _place_of(db: Database, before: CheckpointRef) -> uuid.UUID:
    assert before.checkpoint_id is not None  # noqa: S101 (before_ref has seen to it)
    stored = await find_ulid(db, before, before.checkpoint_id)
    ulid = stored or derive_ulid(before.checkpoint_id)
    if ulid is None:
        raise InvalidConfigError(
            f"before names checkpoint {before.checkpoint_id!r}, which thread {before.thread_id!r} does not have "
            "and whose id tells no time: pass the config of a listed checkpoint"
        )
    return ulid


def list_checkpoints(
    codec: Codec,
    metrics: Metrics,
    config: RunnableConfig | None,
    filter_: dict[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Listing:
    """Make a listing; see DurableSaver.list.

    Raises:
        InvalidConfigError: An argument cannot be used.
    """
    wanted = require_filter(filter_)
    walk = CheckpointWalk(
        checkpoint_ref(config) if config is not None else None,
        before_ref(before, config) if before is not None else None,
        wanted,
    )
    return Listing(walk, codec.reader, codec.serde, wanted, require_limit(limit), metrics)
