"""Rows as they travel between the codec and the statements."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from langgraph_durable._segments import EncodedValue, SegmentedValue

Encoded = tuple[str, bytes]
"""What a serializer makes of a value: its type tag and its bytes."""

StoredValue = Encoded | SegmentedValue
"""A channel's value as read: whole, or in segments."""


class UnsentValues(Protocol):
    """A checkpoint's values, to be encoded if they turn out not to be stored after all."""

    def encode(self, channel: str) -> EncodedValue:
        """Encode the value of a channel."""
        ...

    def encode_kept(self, parent: Encoded, channel: str, version: str) -> EncodedValue | None:
        """Encode the value of a channel that is inside the parent, if it has the version that is kept."""
        ...


@dataclass(slots=True)
class CheckpointRow:
    """A checkpoint ready to be stored."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    format: int
    derived_ulid: uuid.UUID | None
    parent_checkpoint_id: str | None
    root_checkpoint_id: str | None
    run_id: str | None
    checkpoint: Encoded
    metadata: Encoded
    metadata_index: Mapping[str, object]
    versions: dict[str, str | None]
    """Channel -> version in channel_values, of every channel with a value; None if it is inside the checkpoint."""
    kept: dict[str, str]
    """Channel -> version, of those with neither a value nor a new version: what the parent has of them stays theirs.

    Nearly all are empty, there as here. The rest are delta channels whose snapshot is the parent's still, and channels
    that the graph does not have: another graph's on the same thread, or one's that came before it or comes back after
    it.
    """
    delta_channels: Sequence[str]
    """Channels whose values are replayed from what ancestors' tasks wrote, unless the parent's value is kept."""
    values: dict[str, EncodedValue]
    """Channel -> value, of those that this put sends; the others are stored already."""
    unsent: UnsentValues
    """What it does not send as yet."""

    def send_too(self, channels: Sequence[str]) -> None:
        """Add the values of channels that the database was found to lack."""
        for channel in channels:
            self.values[channel] = self.unsent.encode(channel)

    def send_kept(self, parent: Encoded | None, channels: Sequence[str]) -> None:
        """Add the values of kept channels that are inside the parent, where the database cannot read them."""
        for channel in channels:
            version = self.kept.pop(channel)
            if (
                parent is not None
                and (encoded := self.unsent.encode_kept(parent, channel, version)) is not None
            ):
                self.versions[channel], self.values[channel] = version, encoded
                self.delta_channels = [c for c in self.delta_channels if c != channel]


@dataclass(slots=True)
class Fold:
    """Values of delta channels, to be stored at a checkpoint that had only what they are replayed from."""

    checkpoint_ns: str
    checkpoint_id: str
    versions: Mapping[str, str]
    values: Mapping[str, EncodedValue]
    prove: Callable[[StoredCheckpoint], None]
    """Raises unless the checkpoint, as stored then, has the state that it had before."""


class WriteRow(NamedTuple):
    """One write of a task, ready to be stored."""

    idx: int
    channel: str
    type: str
    value: bytes


class StoredWrite(NamedTuple):
    """One write of a task, as stored."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    value: Encoded


@dataclass(slots=True)
class StoredCheckpoint:
    """A checkpoint as stored, with the values it names and the writes that hang on it.

    Or an ancestor: what delta channels are replayed from of a checkpoint that was pruned.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    ulid: uuid.UUID
    parent_checkpoint_id: str | None
    checkpoint: Encoded | None
    """None of an ancestor without a value inside."""
    metadata: Encoded | None
    """None of an ancestor."""
    versions: dict[str, str | None]
    values: dict[str, StoredValue] = field(default_factory=dict)
    writes: list[StoredWrite] = field(default_factory=list)
    parent_sends: list[StoredWrite] = field(default_factory=list)
    """Pending sends that a checkpoint of format v<4 keeps in its parent's writes."""
    fault: str = ""
    """Why its row cannot be read, if it cannot."""


@dataclass(slots=True)
class StoredSeed:
    """The value that a channel's replay starts from: one of its own, or one inside its checkpoint."""

    checkpoint_id: str
    value: StoredValue | None = None
    checkpoint: Encoded | None = None


HistoryWrite = tuple[int, str, str, str, int, str, str, bytes, None, None]
"""A write as the row it came in: its run, checkpoint_id, task_path, task_id, idx, channel, type, value.

A plain row, since there may be thousands.
"""


@dataclass(slots=True)
class StoredHistory:
    """What one channel is replayed from: the writes of its ancestors, oldest first, onto the seed, if any."""

    writes: list[HistoryWrite] = field(default_factory=list)
    seed: StoredSeed | None = None
