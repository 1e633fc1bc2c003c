"""Rows between the codec and the statements: ready to be stored, or as read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from langgraph_durable._postgres.statement import Column
from langgraph_durable._segments.values import EncodedValue, SegmentedValue

Encoded = tuple[str, bytes]
"""A serialized value: its type tag and its bytes."""

StoredValue = Encoded | SegmentedValue
"""A channel's value as read: whole, or in segments."""


# --- ready to be stored ---


class UnsentValues(Protocol):
    """A checkpoint's values that are encoded only if the database turns out to lack them."""

    def encode(self, channel: str) -> EncodedValue:
        """Encode the value of a channel."""
        ...

    def encode_inherited(self, parent: Encoded, channel: str, version: str) -> EncodedValue | None:
        """Encode the value of a channel that is inside the parent, if it is of this version."""
        ...


@dataclass(slots=True)
class CheckpointRow:
    """A checkpoint ready to be stored."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    columns: Mapping[str, Column]
    """The columns of PUT_CHECKPOINTS that are the same however often the put is repeated."""
    checkpoint: bytes
    metadata: bytes
    versions: dict[str, str | None]
    """Channel -> version in channel_values, of every channel with a value; None if it is inside the checkpoint."""
    unmentioned: dict[str, str]
    """Channel -> version, of channels with neither a value nor a new version: they are inherited from the parent.

    Nearly all are empty, in the parent too. The rest are delta channels whose snapshot is still the parent's, and
    channels that this graph does not have: another graph's on the same thread, or an earlier or later version's.
    """
    delta_channels: Sequence[str]
    """Channels that are replayed from what ancestors' tasks wrote, unless the parent's value is inherited."""
    values: dict[str, EncodedValue]
    """Channel -> value, of those that this put sends; the others should be stored already."""
    unsent: UnsentValues

    def send_too(self, channels: Sequence[str]) -> None:
        """Add the values of channels that the database lacks."""
        for channel in channels:
            self.values[channel] = self.unsent.encode(channel)

    def send_inherited(self, parent: Encoded | None, channels: Sequence[str]) -> None:
        """Add the values of inherited channels that are inside the parent, where the database cannot read them."""
        for channel in channels:
            version = self.unmentioned.pop(channel)
            if parent is None or (value := self.unsent.encode_inherited(parent, channel, version)) is None:
                continue
            self.versions[channel], self.values[channel] = version, value
            self.delta_channels = [c for c in self.delta_channels if c != channel]


@dataclass(slots=True)
class Fold:
    """Values of delta channels, to be stored at a checkpoint that had only what they are replayed from."""

    checkpoint_ns: str
    checkpoint_id: str
    versions: Mapping[str, str]
    values: Mapping[str, EncodedValue]
    prove: Callable[[StoredCheckpoint], None]
    """Raises unless the checkpoint, as stored with the fold, has the state that it had before."""


class WriteRow(NamedTuple):
    """One write of a task, ready to be stored."""

    idx: int
    channel: str
    type: str
    value: bytes


# --- as read ---


class StoredWrite(NamedTuple):
    """One write of a task, as stored."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    value: Encoded


@dataclass(slots=True)
class StoredCheckpoint:
    """A checkpoint as stored, with the values it names and its pending writes.

    Or an ancestor: what is left of a pruned checkpoint, since delta channels are replayed from it.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    ulid: uuid.UUID
    parent_checkpoint_id: str | None
    checkpoint: Encoded | None
    """None for an ancestor without a value inside."""
    metadata: Encoded | None
    """None for an ancestor."""
    versions: dict[str, str | None]
    values: dict[str, StoredValue] = field(default_factory=dict)
    writes: list[StoredWrite] = field(default_factory=list)
    parent_sends: list[StoredWrite] = field(default_factory=list)
    """Pending sends that a checkpoint of format v<4 keeps in its parent's writes."""
    fault: str = ""
    """Why the row cannot be read, if so."""


@dataclass(slots=True)
class StoredSeed:
    """The value that a channel's replay starts from: in a row by itself, or inside its checkpoint."""

    checkpoint_id: str
    value: StoredValue | None = None
    checkpoint: Encoded | None = None


HistoryWrite = tuple[int, str, str, str, int, str, str, bytes, None, None]
"""A write as the row it came in: its run, checkpoint_id, task_path, task_id, idx, channel, type, value.

A plain row, since there may be thousands.
"""


@dataclass(slots=True)
class StoredHistory:
    """The writes that one channel is replayed from, oldest first, and the seed they start from, if any."""

    writes: list[HistoryWrite] = field(default_factory=list)
    seed: StoredSeed | None = None
