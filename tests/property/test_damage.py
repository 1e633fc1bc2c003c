"""A row damaged at random: whatever reads it names it, and nothing of other threads is hidden.

What a damaged row itself reads as is another matter: values have no checksums, and many a change leaves a value that
can be read.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde import _msgpack
from psycopg import sql
from psycopg.rows import dict_row

from langgraph_durable import DurableError, DurableSaver, EffectLog, PruneFailed, pending_interrupts
from langgraph_durable.cli import main
from tests.conftest import Databases
from tests.damage import TABLES, THREADS, allow_any_state, build, config_of, fill, strict_serde
from tests.effects import SCHEMA

EXAMPLES = int(os.environ.get("DURABLE_EXAMPLES", "500"))
TIMES = ["infinity", "-infinity", "20000-01-01", "4000-01-01 BC", "1066-10-14"]

Column = tuple[str, str, str, bool]
"""Table, name, type and whether it may be NULL."""


class Damaged:
    """A database with the same in three threads, whose rows can be damaged and mended."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        with DurableSaver.from_conn_string(conninfo, serde=strict_serde()) as saver:
            fill(saver, conninfo)
            self.expected = Reader(saver).of_healthy()
        allow_any_state(conninfo)
        self.connection = psycopg.connect(conninfo, autocommit=True, row_factory=dict_row)
        self.connection.execute(f"SET search_path TO {SCHEMA}")
        for table in TABLES:
            self.connection.execute(f"CREATE TABLE public.{table} AS SELECT * FROM {table}")
        rows = self.connection.execute(
            "SELECT table_name, column_name, udt_name, is_nullable = 'YES' AS nullable FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = ANY (%s) AND is_identity = 'NO' ORDER BY 1, ordinal_position",
            [SCHEMA, list(TABLES)],
        ).fetchall()
        self.columns: list[Column] = [
            (r["table_name"], r["column_name"], r["udt_name"], r["nullable"]) for r in rows
        ]

    def mend(self) -> None:
        # Not TRUNCATE, which makes files anew.
        self.connection.execute(
            "; ".join(
                f"DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM public.{table}"
                for table in TABLES
            )
        )

    def change(self, dice: random.Random, column: Column) -> dict[str, Any] | None:
        """Damage one row of the thread, and return its former self; None if there is none that can be."""
        table, name, _, _ = column
        of_thread = {
            "effect_results": "effect_id IN (SELECT effect_id FROM effects WHERE thread_id = 'damaged')",
            "effect_events": "effect_id IN (SELECT effect_id FROM effects WHERE thread_id = 'damaged')",
            "tombstones": "true",
        }.get(table, "thread_id = 'damaged'")
        rows = self.connection.execute(
            f"SELECT ctid::text AS ctid, * FROM {table} WHERE {of_thread} ORDER BY {table}.*::text"
        ).fetchall()
        row = dice.choice(rows)
        value, cast = dice.choice(_values(dice, column, row[name]))
        try:
            self.connection.execute(
                sql.SQL("UPDATE {} SET {} = %s{} WHERE ctid = %s::tid").format(
                    sql.Identifier(table), sql.Identifier(name), sql.SQL(cast)
                ),
                [value, row["ctid"]],
            )
        except psycopg.IntegrityError:  # it is the key of another row, or must not be NULL
            return None
        return row


def _values(dice: random.Random, column: Column, value: Any) -> list[tuple[Any, str]]:
    """Return damaged values, each with its cast."""
    _, name, kind, nullable = column
    made: list[Any] = [None] if nullable else []
    cast = f"::{kind.removeprefix('_')}{'[]' if kind.startswith('_') else ''}"
    if kind == "text":
        made += ["", "of no kind", "msgpack", "zlib:msgpack", "null", "bytes", "tuple:null"]
    elif kind == "bytea":
        data = value or b"\xc1"
        made += [b"", data[: dice.randrange(len(data))] if data else b"\xc1", b"\xc1", b"\x01" * 20]
        for _ in range(3):
            at = dice.randrange(len(data)) if data else 0
            made.append(data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :])
    elif kind == "timestamptz":
        made += TIMES
    elif kind == "jsonb":
        made += ["1", "[]", "null", '"x"', "{}", '{"source": 1}']
    elif kind in ("_text", "_bytea"):
        items = list(value or [])
        end: Any = b"\xc1" if kind == "_bytea" else "x"
        made += [[], [None], [*items, None], [None, *items[1:]], items[1:], [*items, end], [[end, end]]]
    elif kind == "uuid":
        made += ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
    elif kind in ("int4", "int8"):
        made += [0, -1, 1, 2**31 - 1]
    elif kind == "bool":
        made += [True, False]
    else:
        raise AssertionError(f"{name} is of a type that no damage is known for: {kind}")
    return [(one, cast) for one in made]


@pytest.fixture(scope="module")
def damaged(databases: Databases, template: str) -> Iterator[Damaged]:
    name = databases.create(template)
    made = Damaged(databases.conninfo(name))
    yield made
    made.connection.close()
    databases.drop(name)


class Reader:
    """Calls whatever reads, and keeps what it says of the threads that are not damaged."""

    def __init__(self, saver: DurableSaver) -> None:
        self.saver = saver
        self.log = EffectLog.from_saver(saver)
        self.errors: list[tuple[str, DurableError]] = []

    def attempt(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except DurableError as exc:
            self.errors.append((what, exc))
            return None

    def of_healthy(self) -> dict[str, Any]:
        """Read all threads at once, and each healthy one: nothing of that may fail, or be left out."""
        waiting = [replace(w, age=timedelta(0)) for w in pending_interrupts(self.saver)]
        effects, pending = self.log.list(limit=None), self.log.pending()
        said: dict[str, Any] = {
            "inbox": [w for w in waiting if w.thread_id in THREADS[1:]],
            "effects": [e for e in effects if e.thread_id in THREADS[1:]],
            "pending": [e for e in pending if e.thread_id in THREADS[1:]],
        }
        for thread_id in THREADS[1:]:
            config = config_of(thread_id)
            said[thread_id] = (
                list(self.saver.list(config)),
                self.saver.get_tuple(config),
                self.saver.get_delta_channel_history(config=config, channels=["log"]),
                list(self.saver.timeline(thread_id)),
                self.saver.storage_stats(thread_id),
            )
        return said

    def of_damaged(self, thread_id: str) -> None:
        config = config_of(thread_id)
        listed = self.attempt("list", lambda: list(self.saver.list(config)))
        self.attempt("list with a filter", lambda: list(self.saver.list(config, filter={"source": "loop"})))
        self.attempt("get_tuple", lambda: self.saver.get_tuple(config))
        self.attempt("get_ulid", lambda: self.saver.get_ulid(config))
        for found in listed or ():
            self.attempt("get_tuple by id", partial(self.saver.get_tuple, found.config))
        history = self.saver.get_delta_channel_history
        self.attempt("history", lambda: history(config=config, channels=["log"]))
        list(pending_interrupts(self.saver, thread_id=thread_id))
        list(self.saver.timeline(thread_id))
        for record in self.log.list(thread_id=thread_id):
            assert self.log.get(record.effect_id) == record
            self.log.history(record.effect_id)
        self.log.for_checkpoint(config)
        self.saver.storage_stats(thread_id)

    def of_all(self) -> None:
        self.attempt("list of all", lambda: list(self.saver.list(None)))
        self.saver.storage_stats()
        self.attempt("prune", lambda: self.saver.prune(THREADS, keep_last=1, dry_run=True))

    def change_all(self, thread_id: str) -> None:
        """Whatever changes threads: one by one, and the healthy ones whatever becomes of the other."""
        graph = build(self.saver)
        threads = [thread_id, *THREADS[1:]]
        self.attempt("copy", lambda: self.saver.copy_thread(thread_id, "copy"))
        self.attempt("sweep", lambda: self.saver.sweep(keep_last=2))
        self.attempt("compact", lambda: self.saver.compact(graph, threads))
        for healthy in THREADS[1:]:
            assert len(list(self.saver.list(config_of(healthy)))) == 1
        self.saver.delete_thread(thread_id, force=True)
        assert self.saver.get_tuple(config_of(thread_id)) is None


@settings(
    max_examples=EXAMPLES // 4,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**64))
def test_a_damaged_row_is_named_and_hides_nothing_else(damaged: Damaged, seed: int) -> None:
    dice = random.Random(seed)
    column = dice.choice(damaged.columns)
    _, name, kind, _ = column
    thread_id = "damaged"
    damaged.mend()
    before = damaged.change(dice, column)
    if before is None:
        return
    with DurableSaver.from_conn_string(damaged.conninfo, serde=strict_serde()) as saver:
        reader = Reader(saver)
        assert reader.of_healthy() == damaged.expected
        reader.of_damaged(thread_id)
        reader.of_all()
        if kind != "bytea":  # else LangGraph may be given what no run stores
            reader.attempt("get_state", lambda: build(saver).get_state(config_of(thread_id)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", True)
            command = dice.choice([["interrupts"], ["timeline", thread_id], ["effects", "list", "--all"]])
            assert main([*command, *dice.choice([[], ["--json"]]), "--database", damaged.conninfo]) == 0
        if dice.random() < 0.5:
            reader.change_all(thread_id)
    of_row = [str(before[key]) for key in ("thread_id", "checkpoint_id") if before.get(key)]
    if "effect_id" in before:
        of_row = [thread_id, "effect "]
    if name in ("thread_id", "checkpoint_id", "checkpoint_ns"):
        of_row.append("")  # by another name
    for what, exc in reader.errors:
        said = str(exc) if not isinstance(exc, PruneFailed) else f"{exc} {list(exc.failures)}"
        assert any(part in said for part in of_row), f"{what} does not name the row of {column}: {said}"
        if isinstance(exc, PruneFailed):
            assert not exc.failures.keys() & set(THREADS[1:])
            assert all(isinstance(failure, DurableError) for failure in exc.failures.values()), exc.failures
