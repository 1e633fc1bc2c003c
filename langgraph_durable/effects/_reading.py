"""Reading the effect log: one effect, pages of effects, and audit logs."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.ulids import parse_ulid
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._validation import require_limit, require_text
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.encoding import event_of, record_of
from langgraph_durable.effects.records import TRANSITIONS, EffectEvent, EffectRecord, State
from langgraph_durable.errors import EffectError, InvalidConfigError

_PAGE_SIZE = 200


def require_effect_id(effect_id: object) -> uuid.UUID:
    """Return an effect's id as stored.

    Raises:
        EffectError: It is not a ULID.
    """
    ulid = parse_ulid(effect_id) if isinstance(effect_id, str) else None
    if ulid is None:
        raise EffectError(f"not the id of an effect: {effect_id!r}. Ids are ULIDs, 26 letters and digits")
    return ulid


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Which effects to list.

    Raises:
        InvalidConfigError: A state is not known, or a text cannot be stored.
    """

    state: State | Sequence[State] | None = None
    tool: str | None = None
    thread_id: str | None = None
    run_id: str | None = None

    def __post_init__(self) -> None:
        for state in self.states or ():
            if state not in TRANSITIONS:
                raise InvalidConfigError(
                    f"state must be one or several of {', '.join(TRANSITIONS)}, got {state!r:.100}"
                )
        for name, text in (("tool", self.tool), ("thread_id", self.thread_id), ("run_id", self.run_id)):
            if text is not None:
                require_text(text, name)

    @property
    def states(self) -> Sequence[State] | None:
        """The states, or None for all."""
        return [self.state] if isinstance(self.state, str) else self.state


class EffectListing:
    """One iteration over effects, oldest first, fetched in pages."""

    def __init__(
        self,
        serde: SerializerProtocol,
        effect_filter: EffectFilter,
        after: str | None,
        limit: int | None,
    ) -> None:
        self._serde = serde
        self._filter = effect_filter
        self._after = require_effect_id(after) if after is not None else None
        self._left = require_limit(limit)
        self._exhausted = False

    def iterate(self, db: Database) -> Iterator[EffectRecord]:
        """Yield the effects, over a BlockingDatabase."""
        while page := run_sync(self._next_page(db)):
            yield from page

    async def aiterate(self, db: Database) -> AsyncIterator[EffectRecord]:
        """Yield the effects, over an AsyncDatabase."""
        while page := await self._next_page(db):
            for record in page:
                yield record

    async def _next_page(self, db: Database) -> list[EffectRecord]:
        size = _PAGE_SIZE if self._left is None else min(_PAGE_SIZE, self._left)
        if self._exhausted or size == 0:
            return []
        rows = await ops.list_effects(
            db,
            states=self._filter.states,
            tool=self._filter.tool,
            thread_id=self._filter.thread_id,
            run_id=self._filter.run_id,
            after=self._after,
            limit=size,
        )
        self._exhausted = len(rows) < size
        if self._left is not None:
            self._left -= len(rows)
        if rows:
            self._after = rows[-1].effect_id
        return [record_of(self._serde, row) for row in rows]


async def get_record(db: Database, serde: SerializerProtocol, effect_id: str) -> EffectRecord | None:
    """Return an effect, or None. Round trips: 1."""
    row = await ops.get_effect(db, require_effect_id(effect_id))
    return record_of(serde, row) if row is not None else None


async def list_pending(db: Database, serde: SerializerProtocol, thread_id: str | None) -> list[EffectRecord]:
    """Return the effects that need a decision. Round trips: 1."""
    if thread_id is not None:
        require_text(thread_id, "thread_id")
    rows = await ops.list_effects(db, states=["unknown", "issued"], or_none_known=True, thread_id=thread_id)
    return [record_of(serde, row) for row in rows if row.needs_decision]


async def list_for_checkpoint(
    db: Database, serde: SerializerProtocol, ref: CheckpointRef
) -> list[EffectRecord]:
    """Return the effects of a checkpoint's tasks. Round trips: 1; 2 if the checkpoint is named by a ULID."""
    return [record_of(serde, row) for row in await ops.list_checkpoint_effects(db, ref)]


async def list_history(db: Database, effect_id: str) -> list[EffectEvent]:
    """Return the audit log of an effect, oldest first. Round trips: 1."""
    return [event_of(effect_id, row) for row in await ops.list_events(db, require_effect_id(effect_id))]
