"""A saver's serializer, with the settings that decide how values are stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.serialization import encrypts
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.reading import SegmentReader

DEFAULT_INDEXED_METADATA = ("source", "step", "run_id")
"""The metadata that stays readable in the database when the serializer encrypts."""


class Codec(NamedTuple):
    """Made for each call, since LangGraph reassigns a saver's serializer."""

    serde: SerializerProtocol
    indexed_metadata: Collection[str] | None
    """Metadata keys kept readable in the database; None for the default."""
    segment_key: bytes | None
    """The key of the segments' hashes; None for hashes without a key."""
    segments: SegmentCache
    tuning: bool
    """Whether listings and histories pause the garbage collector, and listings copy repeated messages."""

    @property
    def index_keys(self) -> Collection[str] | None:
        """The metadata keys to keep readable; None for all that jsonb holds exactly."""
        if self.indexed_metadata is None and encrypts(self.serde):
            return DEFAULT_INDEXED_METADATA
        return self.indexed_metadata

    @property
    def reader(self) -> SegmentReader:
        """The settings for reading stored segments."""
        cipher = self.serde.cipher if encrypts(self.serde) else None
        return SegmentReader(self.segments, self.segment_key, cipher)
