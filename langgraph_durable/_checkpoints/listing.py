"""Listings: pages of stored checkpoints, decoded, filtered and counted."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from psycopg.types.json import Jsonb

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.decoding import decode_checkpoint
from langgraph_durable._checkpoints.encoding import is_indexable
from langgraph_durable._checkpoints.gc_pause import gc_paused
from langgraph_durable._checkpoints.message_cache import copying_messages
from langgraph_durable._checkpoints.read import load_page, read_page
from langgraph_durable._checkpoints.refs import (
    CheckpointRef,
    before_ref,
    checkpoint_ref,
    find_ulid,
    resolve_checkpoint_id,
)
from langgraph_durable._checkpoints.rows import StoredCheckpoint
from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._metrics import Metrics, measured
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.statement import Statement
from langgraph_durable._segments.values import SegmentedValue
from langgraph_durable._validation import require_limit
from langgraph_durable.errors import InvalidConfigError

LIST_ALL = load_page("list_all")
LIST_THREAD = load_page("list_thread")
LIST_NAMESPACE = load_page("list_namespace")
LIST_ONE_IN_THREAD = load_page("list_one_in_thread")
LIST_ONE_IN_NAMESPACE = load_page("list_one_in_namespace")

PAGE_SIZE = 64

_BATCH_BYTES = 256 << 10
"""Stored bytes of the checkpoints that are decoded together, before the first of them is yielded."""
_LAST_ULID = uuid.UUID(int=2**128 - 1)


class Listing:
    """One listing, newest first, a page at a time; it holds no connection and no snapshot between pages."""

    def __init__(
        self,
        codec: Codec,
        metrics: Metrics,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        """Check the arguments; see DurableSaver.list.

        Raises:
            InvalidConfigError: An argument cannot be used.
        """
        self.metrics = metrics
        self._codec = codec
        self._serde = codec.serde
        self._ref = checkpoint_ref(config) if config is not None else None
        self._before = before_ref(before, config) if before is not None else None
        self._wanted = require_filter(filter)
        self._left = require_limit(limit)
        self._params: dict[str, Any] = {}
        self._ended = False

    @property
    def thread_id(self) -> str | None:
        """The listed thread; None for all."""
        return self._ref.thread_id if self._ref is not None else None

    def iterate(self, db: Database) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints, over a BlockingDatabase."""
        while page := run_sync(self._next_page(db)):
            while page:
                found = self._decode_batch(page)
                while found:  # popped, so that what was yielded is not kept
                    yield found.popleft()

    async def aiterate(self, db: Database) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints, over an AsyncDatabase."""
        while page := await self._next_page(db):
            while page:
                found = self._decode_batch(page)
                while found:  # popped, so that what was yielded is not kept
                    yield found.popleft()

    # --- pages ---

    async def _next_page(self, db: Database) -> list[StoredCheckpoint]:
        """Return a page, its newest checkpoint last; none at the end."""
        if self._ended or self._left == 0:
            return []
        size = PAGE_SIZE
        # A filter may reject what the page holds. Without one the limit is what is needed.
        if self._left is not None and not self._wanted:
            size = min(size, self._left)
        page = await self._fetch_page(db, size)
        if len(page) > 1 and self._codec.tuning:  # within one checkpoint, messages do not repeat
            self._serde = copying_messages(self._serde)
        return page[::-1]

    @measured("list")
    async def _fetch_page(self, db: Database, size: int) -> list[StoredCheckpoint]:
        """Fetch the next `size` checkpoints; fewer at the end.

        The database decides the filter only as far as it can: its answer contains every match.

        Raises:
            InvalidConfigError: `before` names a checkpoint that is not stored and whose id holds no time.

        Round trips: 1; 1 more if segments are not cached, each of which is fetched once for the whole page. On the
        first page 1 more for a `before`, and 1 more for an id that is a ULID.
        """
        self._params = {**(self._params or await self._first_params(db)), "size": size}
        page = await read_page(db, self._codec, self._statement(), self._params)
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
        ref = self._ref
        if ref is None:
            return LIST_ALL
        if ref.checkpoint_ns is None:
            return LIST_ONE_IN_THREAD if ref.checkpoint_id else LIST_THREAD
        return LIST_ONE_IN_NAMESPACE if ref.checkpoint_id else LIST_NAMESPACE

    async def _first_params(self, db: Database) -> dict[str, Any]:
        decidable = {k: v for k, v in self._wanted.items() if is_indexable(k) and is_indexable(v)}
        params: dict[str, Any] = {
            "before": _LAST_ULID,
            "cursor_ulid": _LAST_ULID,
            "cursor_thread": "",
            "cursor_ns": "",
            "filter": Jsonb(decidable),
            "indexed_metadata": list(decidable),
        }
        if (ref := self._ref) is not None:
            params |= {"thread_id": ref.thread_id, "checkpoint_ns": ref.checkpoint_ns}
            if ref.checkpoint_id is not None:
                params["checkpoint_id"] = await resolve_checkpoint_id(db, ref, ref.checkpoint_id)
        if self._before is not None:
            params["before"] = await _ulid_of(db, self._before)
        return params

    # --- decoding ---

    def _decode_batch(self, page: list[StoredCheckpoint]) -> deque[CheckpointTuple]:
        """Take checkpoints of some size off a page, newest first, and return those that match.

        The error of one that cannot be decoded is raised after those before it were yielded.
        """
        found: deque[CheckpointTuple] = deque()
        size = 0
        with gc_paused(self._codec.tuning):
            while page and size < _BATCH_BYTES:
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
        if self._wanted and not filter_matches(found.metadata, self._wanted):
            return None
        if self._left is not None:
            self._left -= 1
        return found


def _size(stored: StoredCheckpoint) -> int:
    """Return about how many stored bytes a checkpoint has."""
    sizes = [len(part[1]) for part in (stored.checkpoint, stored.metadata) if part is not None]
    for value in stored.values.values():
        sizes += map(len, value.parts) if isinstance(value, SegmentedValue) else [len(value[1])]
    sizes += [len(write.value[1]) for writes in (stored.writes, stored.parent_sends) for write in writes]
    return sum(sizes)


async def _ulid_of(db: Database, before: CheckpointRef) -> uuid.UUID:
    checkpoint_id = before.checkpoint_id or ""  # before_ref requires one
    ulid = await find_ulid(db, before, checkpoint_id) or derive_ulid(checkpoint_id)
    if ulid is None:
        raise InvalidConfigError(
            f"before names checkpoint {checkpoint_id!r}, which is not stored and whose id holds no time: "
            f"thread {before.thread_id!r}. Pass the config of a listed checkpoint."
        )
    return ulid


# --- metadata filters ---


def require_filter(filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a metadata filter as plain JSON values; None and {} filter nothing.

    Raises:
        InvalidConfigError: The filter is not a JSON object.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        raise InvalidConfigError(f"filter must be a dict of metadata, got {filter!r:.200}")
    for key, value in filter.items():
        _require_json(key, value)
    return dict(filter)


def _require_json(key: Any, value: Any) -> None:
    if not isinstance(key, str):
        raise InvalidConfigError(f"filter has the key {key!r:.200}: metadata keys are str")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InvalidConfigError(
            f"filter[{key!r}] is not JSON ({exc}): filter by str, int, float, bool, None, or lists and "
            "dicts of them"
        ) from exc


def filter_matches(metadata: Any, wanted: Any) -> bool:
    """Return whether metadata contains what a filter asks for, as jsonb `@>` does.

    A dict contains every wanted key with a value that contains the wanted one. A list has, for every wanted element,
    one that contains it. Anything else is equal. None matches only a None that is present.
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
