"""What `list` and `alist` iterate over: pages of stored checkpoints, decoded, filtered and counted off."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints import CheckpointWalk
from langgraph_durable._collector import collector_paused
from langgraph_durable._config import filter_matches
from langgraph_durable._database import Database, run_now
from langgraph_durable._message_copies import copying_messages
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._rows import StoredCheckpoint
from langgraph_durable._segment_reading import SegmentReader
from langgraph_durable._segments import SegmentedValue

_AT_ONCE = 256 << 10
"""Bytes, as stored, of the checkpoints that are decoded one after the other before the first is given away."""


class Listing:
    """One listing, in one direction, once."""

    def __init__(
        self,
        walk: CheckpointWalk,
        reader: SegmentReader,
        decode: Callable[[StoredCheckpoint, SerializerProtocol], CheckpointTuple],
        serde: SerializerProtocol,
        wanted: dict[str, Any],
        limit: int | None,
        metrics: Metrics,
    ) -> None:
        self._walk = walk
        self._reader = reader
        self._decode = decode
        self._serde = serde
        self._wanted = wanted
        self._left = limit
        self._metrics = metrics

    def iterate(self, db: Database) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints, over a BlockingDatabase."""
        while page := run_now(self._next_page(db)):
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
        with collector_paused():
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
        found = self._decode(stored, self._serde)
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
