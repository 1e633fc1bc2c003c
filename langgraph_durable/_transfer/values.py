"""Values as a source stores them: decoded, to see that they can be, and kept as they are where that is possible."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_durable._checkpoints.encoding import is_small
from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._transfer.records import REPEATED, SourceCheckpoint
from langgraph_durable.errors import CheckpointCorruptedError

ABSENT: Final = object()
"""Stands for the value of a channel that has none."""

_PLAIN = frozenset({"msgpack", "json", "bytes", "bytearray", "null"})

Key = tuple[str, str, str]
"""Namespace, channel and version of a value."""


class Serializers(NamedTuple):
    """The serializers of a source and of this saver."""

    source: SerializerProtocol
    target: SerializerProtocol

    def decode(self, kind: str | None, data: bytes | None, what: str) -> tuple[Any, Encoded | None]:
        """Return a value, and its bytes if this saver can store them unchanged.

        Bytes that are stored unchanged keep values of classes that cannot be imported here. The serializer decodes
        those to plain data, and would lose their class if it encoded that.

        Raises:
            CheckpointCorruptedError: It cannot be decoded; the message names `what` it is.
        """
        encoded: Any = (kind, data)
        try:
            value = self.source.loads_typed(encoded)
        except Exception as exc:
            raise CheckpointCorruptedError(
                f"the source's {what} cannot be decoded: {type(exc).__name__}: {exc}. Import it with the serializer "
                "that it was written with (source_serde=, or --allow-pickle for pickled values)."
            ) from exc
        return value, encoded if self.keeps(encoded[0]) else None

    def keeps(self, kind: str) -> bool:
        """Return whether this saver can store bytes of a source's type unchanged, and read them.

        They were written by LangGraph's own serializer, which this saver has, too, and are not encrypted.
        """
        if type(self.target) is not JsonPlusSerializer:
            return False
        return kind in _PLAIN or (kind == "pickle" and self.target.pickle_fallback)


class SeenValues:
    """The channel values of a thread that were read: each large one is read once."""

    def __init__(self) -> None:
        self._seen: dict[Key, Any] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._seen

    def get(self, key: Key) -> Any:
        """Return a small value, REPEATED for a large one, or ABSENT."""
        return self._seen[key]

    def add(self, key: Key, value: Any) -> None:
        """Remember a value, or ABSENT."""
        self._seen[key] = value if value is ABSENT or is_small(value) else REPEATED

    def replace_repeated(self, item: SourceCheckpoint) -> None:
        """Replace large values of a checkpoint that came at the same version before by REPEATED.

        A version stands for one value. LangGraph serializes values in the background while the graph goes on, and a
        saver that stores whole checkpoints may then have another, later value at the same version.
        """
        values = dict(item.checkpoint["channel_values"])
        for channel, version in item.checkpoint["channel_versions"].items():
            key = (item.checkpoint_ns, channel, str(version))
            if channel not in values or is_small(values[channel]):
                continue
            if key in self._seen:
                values[channel] = REPEATED
            self.add(key, values[channel])
        item.checkpoint = {**item.checkpoint, "channel_values": values}
