"""What `list` and `alist` iterate over: pages of stored checkpoints, decoded, filtered and counted off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints import CheckpointWalk
from langgraph_durable._config import filter_matches
from langgraph_durable._database import Database, run_now
from langgraph_durable._message_copies import copying_messages
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._rows import StoredCheckpoint
from langgraph_durable._segment_reading import SegmentReader


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
            while page:  # popped, so that what was yielded is not kept by its page
                if (found := self._accept(page.pop())) is not None:
                    yield found

    async def aiterate(self, db: Database) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints, over an AsyncDatabase."""
        while page := await self._next_page(db):
            while page:
                if (found := self._accept(page.pop())) is not None:
                    yield found

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

    def _accept(self, stored: StoredCheckpoint) -> CheckpointTuple | None:
        if self._left == 0:
            return None
        found = self._decode(stored, self._serde)
        if not filter_matches(found.metadata, self._wanted):
            return None
        if self._left is not None:
            self._left -= 1
        return found
