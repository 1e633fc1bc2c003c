"""The tables of langgraph-checkpoint-postgres, read directly: releases 2.x and 3.x, and ShallowPostgresSaver's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from langgraph.checkpoint.serde.types import TASKS
from psycopg import Connection, IsolationLevel

from langgraph_durable._postgres.conninfo import complete_conninfo
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._postgres.drivers import BlockingSession
from langgraph_durable._postgres.statement import Params, Row, Statement, load, text_array
from langgraph_durable._transfer.records import Node, SourceCheckpoint, SourceWrite, parents_first
from langgraph_durable._transfer.source import BlockingReader
from langgraph_durable._transfer.values import ABSENT, Key, SeenValues, Serializers
from langgraph_durable.errors import CheckpointCorruptedError, ImportFailedError, InvalidConfigError

SOURCE_COLUMNS = load(__package__, "source_columns")
SOURCE_THREADS = load(__package__, "source_threads")
SOURCE_NODES = load(__package__, "source_nodes")
SOURCE_CHECKPOINTS = load(__package__, "source_checkpoints")
SOURCE_VALUES = load(__package__, "source_values")
SOURCE_WRITES = load(__package__, "source_writes")
SHALLOW_CHECKPOINTS = load(__package__, "shallow_checkpoints")
SHALLOW_VALUES = load(__package__, "shallow_values")
SHALLOW_WRITES = load(__package__, "shallow_writes")

_SHALLOW_COLUMNS: Mapping[str, set[str]] = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint", "metadata"},
    "checkpoint_blobs": {"thread_id", "checkpoint_ns", "channel", "type", "blob"},
    "checkpoint_writes": {
        "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "blob",
    },
}  # fmt: skip
_MORE_COLUMNS: Mapping[str, set[str]] = {
    "checkpoints": {"checkpoint_id", "parent_checkpoint_id"},
    "checkpoint_blobs": {"version"},
    "checkpoint_writes": set(),
}
"""What the tables have besides, unless they are ShallowPostgresSaver's."""


class PostgresReader(BlockingReader):
    """Reads everything as of one moment: in one transaction, read only."""

    def __init__(self, conninfo: str, schema: str | None, serializers: Serializers, batch: int) -> None:
        """Connect, and find the tables.

        Args:
            conninfo: The database.
            schema: The schema of the tables; None for the connection's search path.
            serializers: The source's and this saver's.
            batch: Checkpoints to read at a time.

        Raises:
            InvalidConfigError: It does not have the tables.
            ImportFailedError: It cannot be reached.
        """
        self._serializers = serializers
        self._batch = batch
        try:
            self.connection: Connection[Any] = psycopg.connect(
                complete_conninfo(conninfo)[0], prepare_threshold=None
            )
        except psycopg.Error as exc:
            raise ImportFailedError(f"the source cannot be reached: {str(exc).strip()}") from exc
        self.connection.isolation_level = IsolationLevel.REPEATABLE_READ
        self.connection.read_only = True
        try:
            self.schema, self.is_shallow, self.has_task_paths = self._find_tables(schema)
        except BaseException:
            self.connection.close()
            raise

    def _find_tables(self, schema: str | None) -> tuple[str, bool, bool]:
        """Return the schema, whether the tables are ShallowPostgresSaver's, and whether writes have task paths."""
        found = {
            table: (place, set(columns))
            for place, table, columns in self._fetch(SOURCE_COLUMNS, {"schema": schema}, "")
        }
        missing = [
            table
            for table, columns in _SHALLOW_COLUMNS.items()
            if not columns <= found.get(table, ("", set()))[1]
        ]
        if missing or len({place for place, _ in found.values()}) != 1:
            where = f"schema {schema!r}" if schema is not None else "the search path"
            raise InvalidConfigError(
                f"the source has no tables of langgraph-checkpoint-postgres 2.x or 3.x in {where}: "
                f"{', '.join(missing or found)} not found, or of another form. Pass the database of a PostgresSaver, "
                "and its schema if that is not in the search path (source_schema=, or --from-schema)."
            )
        more = [table for table, columns in _MORE_COLUMNS.items() if columns and columns <= found[table][1]]
        if len(more) == 1:
            raise InvalidConfigError(
                f"the source has tables of PostgresSaver and of ShallowPostgresSaver: only {more[0]} has all columns"
            )
        return found["checkpoints"][0], not more, "task_path" in found["checkpoint_writes"][1]

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        return [thread_id for (thread_id,) in self._fetch(SOURCE_THREADS)]

    def read(self, thread_id: str) -> Iterator[list[SourceCheckpoint]]:
        """Yield a thread's checkpoints, parents first."""
        if self.is_shallow:
            yield self._read_shallow(thread_id)
            return
        nodes = parents_first([Node(*row) for row in self._fetch(SOURCE_NODES, {"thread": thread_id})])
        seen = SeenValues()
        for start in range(0, len(nodes), self._batch):
            yield self._read_batch(thread_id, nodes[start : start + self._batch], seen)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # --- PostgresSaver ---

    def _read_batch(self, thread_id: str, nodes: Sequence[Node], seen: SeenValues) -> list[SourceCheckpoint]:
        keys = {
            "thread": thread_id,
            "namespaces": text_array([node.checkpoint_ns for node in nodes]),
            "ids": text_array([node.checkpoint_id for node in nodes]),
        }
        rows = {
            (ns, id_): (
                _load_checkpoint(checkpoint, thread_id, ns, id_),
                _load_json(metadata, thread_id, ns, id_),
            )
            for ns, id_, checkpoint, metadata in self._fetch(SOURCE_CHECKPOINTS, keys)
        }
        blobs = self._read_values(
            thread_id, [(ns, checkpoint) for (ns, _), (checkpoint, _) in rows.items()], seen
        )
        writes = _by_checkpoint(self._fetch(SOURCE_WRITES, keys))
        found = []
        for node in nodes:
            checkpoint, metadata = rows[node[:2]]
            item = SourceCheckpoint(*node, checkpoint, metadata, [])
            item.writes = self._writes(writes.get(node[:2], ()), item.where(thread_id))
            self._fill(item, item.where(thread_id), blobs, seen)
            found.append(item)
        return found

    def _read_values(
        self, thread_id: str, checkpoints: Sequence[tuple[str, Mapping[str, Any]]], seen: SeenValues
    ) -> dict[Key, tuple[str, bytes | None]]:
        """Fetch the values that checkpoints name and that were not read yet."""
        named = {
            (ns, channel, str(version))
            for ns, checkpoint in checkpoints
            for channel, version in checkpoint["channel_versions"].items()
        }
        wanted = sorted(key for key in named if key not in seen)
        columns = zip(*wanted, strict=True) if wanted else ((), (), ())
        names = dict(
            zip(("namespaces", "channels", "versions"), map(text_array, map(list, columns)), strict=True)
        )
        rows = self._fetch(SOURCE_VALUES, {"thread": thread_id, **names})
        return {(ns, channel, version): (kind, blob) for ns, channel, version, kind, blob in rows}

    def _fill(
        self,
        item: SourceCheckpoint,
        where: str,
        blobs: Mapping[Key, tuple[str, bytes | None]],
        seen: SeenValues,
    ) -> None:
        """Add a checkpoint's values to those inside it: small ones since release 2.0.23, none before."""
        values = dict(item.checkpoint.get("channel_values") or {})
        for channel, version in item.checkpoint["channel_versions"].items():
            key = (item.checkpoint_ns, channel, str(version))
            if key not in seen:
                kind, blob = blobs.get(key, ("empty", None))
                value, raw = ABSENT, None
                if kind != "empty":
                    value, raw = self._serializers.decode(kind, blob, f"channel {channel!r}, {where}")
                seen.add(key, value)
                if raw is not None:
                    item.raw[channel] = raw
            else:
                value = seen.get(key)
            if value is not ABSENT:  # a row wins: beside a snapshot the checkpoint has only a marker, True
                values[channel] = value
        item.checkpoint["channel_values"] = values

    def _writes(self, rows: Sequence[Row], where: str) -> list[SourceWrite]:
        return [
            SourceWrite(
                task_id,
                path,
                idx,
                channel,
                *self._serializers.decode(kind, blob, f"write of task {task_id!r} to {channel!r}, {where}"),
            )
            for _, _, path, task_id, idx, channel, kind, blob in rows
        ]

    # --- ShallowPostgresSaver ---

    def _read_shallow(self, thread_id: str) -> list[SourceCheckpoint]:
        key = {"thread": thread_id}
        blobs = {(ns, channel): (kind, blob) for ns, channel, kind, blob in self._fetch(SHALLOW_VALUES, key)}
        writes = self._fetch(SHALLOW_WRITES, key)
        by_checkpoint = _by_checkpoint(writes)
        found = []
        for ns, checkpoint_text, metadata in self._fetch(SHALLOW_CHECKPOINTS, key):
            checkpoint = _load_checkpoint(checkpoint_text, thread_id, ns, "")
            id_ = str(checkpoint.get("id"))
            item = SourceCheckpoint(ns, id_, None, checkpoint, _load_json(metadata, thread_id, ns, id_), [])
            where = item.where(thread_id)
            item.writes = self._writes(by_checkpoint.get((ns, id_), ()), where)
            versions = checkpoint["channel_versions"]
            named = {(ns, c, str(v)): blobs[ns, c] for c, v in versions.items() if (ns, c) in blobs}
            self._fill(item, where, named, SeenValues())
            sends = [row for row in writes if row[0] == ns and row[1] != id_ and row[5] == TASKS]
            if sends and checkpoint.get("v", 1) < 4:  # of the step before, whose checkpoint was not kept
                checkpoint["channel_values"][TASKS] = [write.value for write in self._writes(sends, where)]
                versions[TASKS] = max(versions.values())
            found.append(item)
        return found

    def _fetch(self, statement: Statement, params: Params = None, schema: str | None = None) -> list[Row]:
        session = BlockingSession(self.connection, self.schema if schema is None else schema)
        try:
            return run_sync(session.fetch(statement, params))
        except psycopg.Error as exc:
            raise ImportFailedError(f"the source cannot be read: {str(exc).strip()}") from exc


def _by_checkpoint(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row[0], row[1]), []).append(row)
    return found


def _load_json(text: str, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> dict[str, Any]:
    """Return the JSON object of a checkpoint or its metadata.

    Raises:
        CheckpointCorruptedError: It is something else.
    """
    loaded = json.loads(text)
    if not isinstance(loaded, dict):
        raise CheckpointCorruptedError(
            f"the source has something else than a checkpoint: thread {thread_id!r}, namespace {checkpoint_ns!r}, "
            f"checkpoint {checkpoint_id!r}"
        )
    return loaded


def _load_checkpoint(text: str, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> dict[str, Any]:
    """Return a checkpoint, with versions of its channels.

    Raises:
        CheckpointCorruptedError: It is something else.
    """
    loaded = _load_json(text, thread_id, checkpoint_ns, checkpoint_id)
    if not isinstance(loaded.get("channel_versions"), dict):
        raise CheckpointCorruptedError(
            f"the source's checkpoint has no channel versions: thread {thread_id!r}, namespace {checkpoint_ns!r}, "
            f"checkpoint {checkpoint_id!r}"
        )
    return loaded
