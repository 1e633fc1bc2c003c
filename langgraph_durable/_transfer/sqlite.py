"""The file of langgraph-checkpoint-sqlite, read directly."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ormsgpack

from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._transfer.records import Node, SourceCheckpoint, SourceWrite, parents_first
from langgraph_durable._transfer.source import BlockingReader
from langgraph_durable._transfer.values import SeenValues, Serializers
from langgraph_durable.errors import CheckpointCorruptedError, ImportFailedError, InvalidConfigError

_TABLES = {
    "checkpoints": {
        "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata",
    },
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"},
}  # fmt: skip


class SqliteReader(BlockingReader):
    """Reads everything as of one moment: in one transaction, read only."""

    def __init__(self, path: str, serializers: Serializers, batch: int) -> None:
        """Open the file, and find the tables.

        Raises:
            InvalidConfigError: There is no such file, or it does not have the tables.
            ImportFailedError: It cannot be opened.
        """
        self._serializers = serializers
        self._batch = batch
        if not Path(path).is_file():
            raise InvalidConfigError(f"the source is not a file: {path!r}. Pass sqlite:PATH.")
        uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
        try:
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as exc:
            raise ImportFailedError(f"the source cannot be opened: {exc}") from exc
        try:
            self._paths = self._find_tables(path)
        except BaseException:
            self._connection.close()
            raise

    def _find_tables(self, path: str) -> bool:
        """Return whether writes have task paths."""
        try:
            self._connection.execute("BEGIN")
            found = {
                table: {name for _, name, *_ in self._connection.execute(f"PRAGMA table_info({table})")}
                for table in _TABLES
            }
        except sqlite3.DatabaseError as exc:
            raise InvalidConfigError(f"the source is not a SQLite database: {path!r}: {exc}") from exc
        if missing := [table for table, columns in _TABLES.items() if not columns <= found[table]]:
            raise InvalidConfigError(
                f"the source has no tables of langgraph-checkpoint-sqlite: {', '.join(missing)} not found, or of "
                f"another form: {path!r}. Pass the file of a SqliteSaver."
            )
        return "task_path" in found["writes"]

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        return [row[0] for row in self._fetch("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1")]

    def read(self, thread_id: str) -> Iterator[list[SourceCheckpoint]]:
        """Yield a thread's checkpoints, parents first."""
        rows = self._fetch(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?",
            thread_id,
        )
        nodes = parents_first([Node(*row) for row in rows])
        seen = SeenValues()
        for start in range(0, len(nodes), self._batch):
            yield [self._read_one(thread_id, node, seen) for node in nodes[start : start + self._batch]]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _read_one(self, thread_id: str, node: Node, seen: SeenValues) -> SourceCheckpoint:
        key = (thread_id, node.checkpoint_ns, node.checkpoint_id)
        [(kind, data, metadata)] = self._fetch(
            "SELECT type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            *key,
        )
        item = SourceCheckpoint(*node, {}, _load_metadata(metadata), [])
        where = item.where(thread_id)
        checkpoint, raw = self._serializers.decode(kind, data, where)
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("channel_versions"), dict):
            raise CheckpointCorruptedError(f"the source has something else than a checkpoint: {where}")
        item.checkpoint = checkpoint
        item.writes = self._writes(key, where)
        parts = _values_of(raw) if raw is not None else {}
        values = checkpoint.get("channel_values") or {}
        for channel, version in checkpoint["channel_versions"].items():
            place = (node.checkpoint_ns, channel, str(version))
            if channel in values and place not in seen:
                seen.add(place, values[channel])
                if channel in parts:
                    item.raw[channel] = parts[channel]
        return item

    def _writes(self, key: tuple[str, str, str], where: str) -> list[SourceWrite]:
        path = "task_path" if self._paths else "''"
        rows = self._fetch(
            f"SELECT {path}, task_id, idx, channel, type, value FROM writes "  # noqa: S608 (a column or '')
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY 1, 2, 3",
            *key,
        )
        return [
            SourceWrite(
                task_id,
                path,
                idx,
                channel,
                *self._serializers.decode(kind, value, f"write of task {task_id!r} to {channel!r}, {where}"),
            )
            for path, task_id, idx, channel, kind, value in rows
        ]

    def _fetch(self, statement: str, *params: Any) -> list[Any]:
        try:
            return self._connection.execute(statement, params).fetchall()
        except sqlite3.Error as exc:
            raise ImportFailedError(f"the source cannot be read: {exc}") from exc


def _load_metadata(metadata: Any) -> dict[str, Any]:
    loaded = json.loads(metadata) if metadata is not None else {}
    return loaded if isinstance(loaded, dict) else {}


def _values_of(encoded: Encoded) -> dict[str, Encoded]:
    """Return a serialized checkpoint's channel values, each serialized, with objects of any class as they are."""
    kind, data = encoded
    if kind != "msgpack":
        return {}
    with suppress(Exception):  # objects as keys of dicts, which are serialized again instead
        values = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)[
            "channel_values"
        ]
        return {
            channel: (kind, ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))
            for channel, value in values.items()
        }
    return {}
