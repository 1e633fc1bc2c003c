"""Every statement prepares on a migrated schema; the hot ones find their rows by index."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from pkgutil import walk_packages
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import pq, sql

import langgraph_durable
from langgraph_durable._checkpoints.put import add_values, writes_row
from langgraph_durable._checkpoints.read import checkpoint_key
from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.rows import WriteRow
from langgraph_durable._postgres.statement import RowsStatement, SentRow, Statement, gather, render
from langgraph_durable._segments.values import EncodedValue
from langgraph_durable.schema import DEFAULT_SCHEMA
from tests.conftest import Databases


def find_statements() -> dict[str, Statement]:
    """Return the statements that the package's modules name; of one that stores rows, both forms.

    Raises:
        AssertionError: Two statements have one name.
    """
    found: dict[str, Statement] = {}
    for module in walk_packages(langgraph_durable.__path__, "langgraph_durable."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(module.name)).items():
            forms: dict[str, Statement] = {}
            if isinstance(value, Statement):
                forms = {name: value}
            elif isinstance(value, RowsStatement):
                forms = {f"{name}.many": value.many} | ({f"{name}.one": value.one} if value.one else {})
            for form, statement in forms.items():
                assert found.setdefault(form, statement) is statement, f"two statements are named {form}"
    return found


STATEMENTS = find_statements()
TABLES = {"checkpoints", "channel_values", "segments", "writes", "tombstones"}

THREADS = 2000
PER_THREAD = 4
HUGE = 6000
"""Checkpoints of the one huge thread."""

# A thread's checkpoints, each with two values and three writes; every id is its number.
FILL = """
CREATE TEMPORARY TABLE planned AS
SELECT 'thread-' || t AS thread_id, c FROM generate_series(1, {threads}) AS t, generate_series(1, {each}) AS c
UNION ALL SELECT 'huge', c FROM generate_series(1, {huge}) AS c;

INSERT INTO {schema}.checkpoints
SELECT thread_id, '', 'id-' || c, lpad(to_hex(c), 32, '0')::uuid, now(),
    CASE WHEN c > 1 THEN 'id-' || c - 1 END, NULL, 'run-' || thread_id || c / 10, 4, 'msgpack',
    decode(repeat('00', 300), 'hex'), 'msgpack', decode(repeat('00', 100), 'hex'),
    jsonb_build_object('step', c, 'source', 'loop'), ARRAY['a', 'b'], ARRAY['v-' || c, 'v-' || c]
FROM planned;

INSERT INTO {schema}.channel_values
SELECT thread_id, '', channel, 'v-' || c, 'msgpack', decode(repeat('00', 200), 'hex')
FROM planned, unnest(ARRAY['a', 'b']) AS channel;

INSERT INTO {schema}.segments
SELECT thread_id, substr(sha256((thread_id || c)::bytea), 1, 20), '\\x00' FROM planned;

INSERT INTO {schema}.writes
SELECT thread_id, '', 'id-' || c, 'task', idx, '', 'a', 'msgpack', decode(repeat('00', 100), 'hex')
FROM planned, generate_series(0, 2) AS idx;

INSERT INTO {schema}.writes
SELECT thread_id, '', 'id-' || c, 'asks', -3, '', '__interrupt__', 'msgpack', decode('80', 'hex')
FROM planned WHERE c = 2 OR c = {each} AND thread_id LIKE '%%5';

INSERT INTO {schema}.tombstones
SELECT 'deleted-' || t, lpad(to_hex(t), 32, '0')::uuid FROM generate_series(1, {threads}) AS t;

ANALYZE;
"""


# --- every statement prepares ---


def test_every_file_of_a_statement_is_loaded() -> None:
    """A file that nothing loads, or that only a function loads, would not be prepared below."""
    texts = [re.sub(r"\s+", "", statement.text) for statement in STATEMENTS.values()]
    unused = []
    for folder in files("langgraph_durable").iterdir():
        sql_files = folder / "sql"
        if not sql_files.is_dir():
            continue
        for file in sql_files.iterdir():
            text = re.sub(r"^[ \t]*--.*\n", "", file.read_text(), flags=re.MULTILINE)
            text = text.replace("{", "{{").replace("}", "}}")
            text = re.sub(r"\{\{(schema|schema_name)\}\}", r"{\1}", text)
            # What is filled in at import is not in the file.
            parts = [re.sub(r"\s+", "", part) for part in re.split(r"\{\{\w+\}\}", text)]
            if not any(all(part in statement for part in parts) for statement in texts):
                unused.append(file.name)
    assert STATEMENTS
    assert not unused


def test_every_statement_prepares(conninfo: str) -> None:
    """Those for the tables of langgraph-checkpoint-postgres prepare on its tables."""
    with PostgresSaver.from_conn_string(conninfo) as peer:
        peer.setup()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, statement in STATEMENTS.items():
            of_peer = name.startswith(("SOURCE_", "SHALLOW_"))
            query = render(statement, "public" if of_peer else DEFAULT_SCHEMA)
            result = connection.pgconn.prepare(name.encode(), query.query)
            assert result.status == pq.ExecStatus.COMMAND_OK, (name, result.get_error_message())
            described = connection.pgconn.describe_prepared(name.encode())
            assert not query.names or described.nparams == len(query.names), name
            assert all(described.param_type(i) for i in range(described.nparams)), name


# --- the hot ones use their indexes ---


@pytest.fixture(scope="module")
def filled(databases: Databases, template: str) -> Iterator[str]:
    """A database of thousands of checkpoints, analyzed."""
    name = databases.create(template)
    script = sql.SQL(FILL).format(
        schema=sql.Identifier(DEFAULT_SCHEMA), threads=THREADS, each=PER_THREAD, huge=HUGE
    )
    with psycopg.connect(databases.conninfo(name), autocommit=True) as connection:
        connection.execute(script)
    yield databases.conninfo(name)
    databases.drop(name)


def segment_of(thread_id: str, number: int) -> bytes:
    return sha256(f"{thread_id}{number}".encode()).digest()[:20]


def _checkpoint(thread_id: str, number: int) -> SentRow:
    sent = SentRow(
        {
            "thread": thread_id,
            "ns": "",
            "id": f"new-{number}",
            "derived_ulid": f"{number + 1:032x}",
            "parent": f"id-{number}",
            "root": None,
            "run_id": None,
            "format": 4,
            "type": "msgpack",
            "checkpoint_size": 300,
            "metadata_type": "msgpack",
            "metadata_size": 100,
            "metadata_index": "{}",
            "value_channels": ["a", "b"],
            "value_versions": [f"v-{number}", "v-new"],
            "delta_channels": [],
            "unmentioned_channels": ["c"],
            "unmentioned_versions": [f"v-{number}"],
        }
    )
    sent.add_bytes(b"\0" * 400)
    known = segment_of(thread_id, number)
    value = EncodedValue("msgpack", b"\0" * 200, [known, b"\2" * 20], {b"\2" * 20: b"\0" * 200})
    add_values(sent, {"b": value}, {"b": "v-new"}, {known})
    return sent


def _writes(thread_id: str, number: int) -> SentRow:
    ref = CheckpointRef(thread_id, "", None)
    writes = [WriteRow(0, "a", "msgpack", b"\0"), WriteRow(1, "b", "msgpack", b"\1")]
    return writes_row(ref, f"id-{number}", writes, "task", "")


def _one(make: Callable[[str, int], SentRow]) -> Callable[[str, int], Any]:
    return lambda thread_id, number: make(thread_id, number).params()


def _one_as_json(make: Callable[[str, int], SentRow]) -> Callable[[str, int], Any]:
    return lambda thread_id, number: gather([make(thread_id, number)])


def _many(make: Callable[[str, int], SentRow]) -> Callable[[str, int], Any]:
    """Thirty rows, of which the first has the most to look through."""
    return lambda thread_id, number: gather(
        [make(thread_id, number), *(make(f"thread-{other}", number) for other in range(1, 30))]
    )


def _listing(thread_id: str, number: int) -> dict[str, Any]:
    ulid = f"{number:032x}"
    return {
        "thread_id": thread_id,
        "checkpoint_ns": "",
        "checkpoint_id": f"id-{number}",
        "before": "f" * 32,
        "cursor_ulid": ulid,
        "cursor_thread": thread_id,
        "cursor_ns": "",
        "filter": '{"source": "loop"}',
        "indexed_metadata": ["source"],
        "size": 64,
    }


def _by_ulid(thread_id: str, number: int) -> dict[str, Any]:
    return {"thread_id": thread_id, "checkpoint_ns": "", "id": "id-none", "ulid": f"{number:032x}"}


def _history(thread_id: str, number: int, channel: str = "a") -> dict[str, Any]:
    return {"thread": thread_id, "ns": "", "id": f"id-{number}", "channels": [channel]}


# name, and perhaps of what -> its parameters, how many of our rows it may look at, and how many buffers it may touch. A
# page of 64 checkpoints has 128 values and 192 writes.
HOT: Mapping[str, tuple[Any, int, int]] = {
    "PUT_CHECKPOINTS.many of one": (_one_as_json(_checkpoint), 10, 120),
    "PUT_CHECKPOINTS.many": (_many(_checkpoint), 30 * 10, 30 * 120),
    "PUT_WRITES_FIRST_WINS.one": (_one(_writes), 4, 60),
    "PUT_WRITES_FIRST_WINS.many": (_many(_writes), 30 * 4, 30 * 60),
    "PUT_WRITES_LAST_WINS.one": (_one(_writes), 4, 60),
    "PUT_WRITES_LAST_WINS.many": (_many(_writes), 30 * 4, 30 * 60),
    "GET_CHECKPOINT of latest": (lambda thread_id, _: checkpoint_key(thread_id, "", None), 10, 60),
    "GET_CHECKPOINT by id": (lambda t, n: checkpoint_key(t, "", f"id-{n}"), 10, 60),
    "GET_CHECKPOINT by id or ancestor": (lambda t, n: checkpoint_key(t, "", f"id-{n}", True), 10, 60),
    "LIST_NAMESPACE": (_listing, 64 * 8, 64 * 8 * 4),
    # No index orders a thread's checkpoints across its namespaces, so all of them are looked at.
    "LIST_THREAD": (_listing, HUGE + 64 * 8, 64 * 8 * 4),
    "LIST_ONE_IN_NAMESPACE": (_listing, 10, 60),
    "LIST_ONE_IN_THREAD": (_listing, 10, 200),
    "GET_DELTA_HISTORY": (_history, 32 + 10, 120),
    "GET_SEGMENTS": (lambda t, n: ([t, t], [segment_of(t, n), b"none"]), 2, 20),
    "FIND_BY_ULID": (_by_ulid, 2, 20),
    "LIST_STEPS": (
        lambda t, n: {"thread_id": t, "after": f"{max(n - 32, 0):032x}", "size": 32},
        32 * 5,
        32 * 4 * 4,
    ),
    "FIND_ULID": (lambda t, n: {"thread_id": t, "checkpoint_id": f"id-{n}", "checkpoint_ns": ""}, 2, 200),
}


def plan_of(connection: psycopg.Connection[Any], name: str, values: Any) -> dict[str, Any]:
    """Run a statement prepared by hand, take back what it did, and return its plan."""
    statement = STATEMENTS[name.split()[0]]
    query = render(statement, DEFAULT_SCHEMA)
    if "_v1(" in statement.text:
        return plan_inside_function(connection, query.query, query.arguments(values))
    literals = sql.SQL(", ").join(sql.Literal(argument) for argument in query.arguments(values))
    connection.execute("DEALLOCATE ALL")
    connection.execute(b"PREPARE probed AS " + query.query)
    explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE probed ({})").format(literals)
    try:
        row = connection.execute(explain).fetchone()
    finally:
        connection.rollback()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def plan_inside_function(
    connection: psycopg.Connection[Any], call: bytes, arguments: Sequence[Any]
) -> dict[str, Any]:
    """Call a function, take back what it did, and return the plan of the statement whose rows it returned."""
    plans: list[dict[str, Any]] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        _, found, plan = (notice.message_primary or "").partition("plan:\n")
        plans.extend([json.loads(plan)] if found else [])

    connection.add_notice_handler(keep)
    connection.execute("LOAD 'auto_explain'")
    settings = ("log_min_duration = 0", "log_nested_statements = on", "log_analyze = on", "log_format = json")
    connection.execute(";".join(f"SET auto_explain.{setting}" for setting in (*settings, "log_buffers = on")))
    connection.execute("SET client_min_messages = log")
    try:
        psycopg.RawCursor(connection).execute(call, arguments)
    finally:
        connection.rollback()
        connection.remove_notice_handler(keep)
    [inside] = [plan for plan in plans if plan["Query Text"].startswith("WITH ")]
    plan: dict[str, Any] = inside["Plan"]
    return plan


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def looked_at(node: Mapping[str, Any]) -> float:
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float((rows + node.get("Rows Removed by Index Recheck", 0)) * node["Actual Loops"])


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(
    ("thread_id", "number"), [("thread-1000", PER_THREAD), ("huge", HUGE), ("huge", HUGE // 2)]
)
@pytest.mark.parametrize("name", HOT)
def test_hot_statements_use_their_indexes(
    filled: str, name: str, thread_id: str, number: int, mode: str
) -> None:
    parameters, most_rows, most_buffers = HOT[name]
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(connection, name, parameters(thread_id, number))
    scans = [
        node for node in nodes(plan) if node.get("Relation Name") in TABLES and "Scan" in node["Node Type"]
    ]
    assert scans or name.startswith("PUT_WRITES")
    for scan in scans:
        assert scan["Node Type"] in {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, scan
        assert "thread_id" in (scan.get("Index Cond") or scan["Recheck Cond"]), scan
    assert sum(looked_at(scan) for scan in scans) <= most_rows
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= most_buffers


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_a_long_history_looks_at_each_row_a_few_times_at_most(filled: str, mode: str) -> None:
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(connection, "GET_DELTA_HISTORY", _history("huge", HUGE, "never written"))
    scans = [node for node in nodes(plan) if node.get("Relation Name") in TABLES]
    assert scans
    assert all(scan["Node Type"] != "Seq Scan" for scan in scans)
    # Each checkpoint and its three writes, and some twice: between id-51 and id-50 there is id-500.
    assert sum(looked_at(scan) for scan in scans) <= HUGE * 2 * (1 + 3)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_listing_all_threads_reads_only_its_page(filled: str, mode: str) -> None:
    parameters = {**_listing("huge", HUGE), "cursor_thread": "", "cursor_ulid": "f" * 32}
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(connection, "LIST_ALL", parameters)
    values = [n for n in nodes(plan) if n.get("Relation Name") in TABLES - {"checkpoints"}]
    assert values
    assert all("Index" in scan["Node Type"] for scan in values)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(("thread_id", "threads"), [(None, 10), ("thread-15", 1)])
def test_an_inbox_page_stops_when_it_is_full(
    filled: str, thread_id: str | None, threads: int, mode: str
) -> None:
    parameters = {"after": "thread-1", "size": 10, "thread_id": thread_id}
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(connection, "LIST_WAITING", parameters)
    assert plan["Actual Rows"] == threads
    scans = [node for node in nodes(plan) if node.get("Relation Name") in TABLES]
    assert all(scan["Node Type"] != "Seq Scan" for scan in scans)
    # One thread in ten waits; a thread's latest checkpoint, and its question, or that it has none there.
    assert sum(looked_at(scan) for scan in scans) <= threads * 10 * 4 + 20


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("thread_id", ["thread-1000", "huge"])
def test_deleting_a_thread_finds_its_rows_by_index(filled: str, thread_id: str, mode: str) -> None:
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(
            connection,
            "DELETE_THREAD",
            {"thread": thread_id, "ulid": "f" * 32, "force": False, "always": False},
        )
    scans = [
        node for node in nodes(plan) if node.get("Relation Name") in TABLES and "Scan" in node["Node Type"]
    ]
    assert {scan["Relation Name"] for scan in scans} == TABLES - {"tombstones"}
    # A custom plan for the huge thread may rightly read the table: a third of it is to go.
    if thread_id != "huge" or mode == "force_generic_plan":
        assert all("Seq" not in scan["Node Type"] for scan in scans)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_sizes_of_one_thread_read_no_other(filled: str, mode: str) -> None:
    with psycopg.connect(filled, options=f"-c plan_cache_mode={mode}") as connection:
        plan = plan_of(connection, "GET_SIZES", {"thread": "thread-1000"})
    scans = [n for n in nodes(plan) if n.get("Relation Name") in TABLES and n["Actual Loops"]]
    assert {scan["Relation Name"] for scan in scans} == TABLES - {"tombstones"}
    # A checkpoint has two values, one segment and three writes, and one write asks.
    assert sum(looked_at(scan) for scan in scans) <= PER_THREAD * (1 + 2 + 1 + 3) + 2


# --- what removes takes time with the rows of a thread, not with their square ---

MANY = 2000
FILL_THREAD = """
INSERT INTO {schema}.checkpoints
SELECT 't', '', 'id-' || c, lpad(to_hex(c), 32, '0')::uuid, now(), NULL, NULL, NULL, 4, 'msgpack', '', 'msgpack', '',
    '{{}}', ARRAY['a'], ARRAY['v-' || c] FROM generate_series(1, {many}) AS c;
INSERT INTO {schema}.ancestors
SELECT 't', '', 'old-' || c, NULL, 'msgpack', '', ARRAY['a'], ARRAY['v-' || c] FROM generate_series(1, {many}) AS c;
INSERT INTO {schema}.channel_values
SELECT 't', '', 'a', 'v-' || c, 'msgpack', '', ARRAY[substr(sha256(c::text::bytea), 1, 20)]
FROM generate_series(1, {many}) AS c;
INSERT INTO {schema}.segments
SELECT 't', substr(sha256(c::text::bytea), 1, 20), '\\x00' FROM generate_series(1, {many}) AS c;
INSERT INTO {schema}.writes
SELECT 't', '', 'id-' || c, 'task', 0, '', 'a', 'msgpack', '' FROM generate_series(1, {many}) AS c;
"""


def _arrays(**columns: str) -> dict[str, Any]:
    """Each column's texts, numbered."""
    numbered = {name: [text.format(n) for n in range(1, MANY + 1)] for name, text in columns.items()}
    return {"thread": "t", **numbered}


_KEYS = _arrays(ns="", id="id-{}")
REMOVING: dict[str, dict[str, Any]] = {
    "LEAVE_ANCESTORS": _KEYS | _arrays(seed_ns="", seed_id="id-{}", seed_channel="a"),
    "FORGET_PARENTS": _KEYS,
    "DELETE_CHECKPOINTS": _KEYS,
    "DELETE_ANCESTORS": _arrays(ns="", id="old-{}"),
    "DELETE_WRITES": _KEYS | _arrays(kept_ns="", kept_id="id-{}", kept_channel="other"),
    "DELETE_VALUES": _arrays(ns="", channel="a", version="v-{}"),
    "DELETE_SEGMENTS": {"thread": "t"},
}


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", REMOVING)
def test_removal_looks_at_each_row_a_few_times_at_most(conninfo: str, name: str, mode: str) -> None:
    """With a plan made while the tables were empty, as the first prune of a process makes it."""
    query = render(STATEMENTS[name], DEFAULT_SCHEMA)
    literals = sql.SQL(", ").join(sql.Literal(argument) for argument in query.arguments(REMOVING[name]))
    fill = sql.SQL(FILL_THREAD).format(schema=sql.Identifier(DEFAULT_SCHEMA), many=MANY)
    with psycopg.connect(conninfo, autocommit=True, options=f"-c plan_cache_mode={mode}") as connection:
        connection.execute(b"PREPARE probed AS " + query.query)
        connection.execute(sql.SQL("EXECUTE probed ({})").format(literals))
        with psycopg.connect(conninfo) as other:
            other.execute(fill)
        explain = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE probed ({})").format(literals)
        row = connection.execute(explain).fetchone()
    assert row is not None
    steps = [*nodes(row[0][0]["Plan"])]
    removed = sum(n.get("Rows Removed by Join Filter", 0) * n["Actual Loops"] for n in steps)
    assert sum(map(looked_at, steps)) + removed <= 20 * MANY
