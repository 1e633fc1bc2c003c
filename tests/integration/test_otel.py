"""Spans and metrics follow OpenTelemetry's conventions, contain no user content, and are off by default."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from opentelemetry import metrics as global_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect
from langgraph_durable.errors import ConnectionFailedError, InvalidConfigError
from langgraph_durable.otel import instrument
from tests.acceptance.graphs import CHAIN, chain
from tests.samples import LARGE, WRITES, Driver, Observer, a_put, await_until, config

ROOT = Path(__file__).parents[2]


class Flag(TypedDict, total=False):
    fails: bool
    said: str


class Telemetry:
    """Providers of one test, and what reached them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracers.get_tracer("test")
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def instrument(self, saver: DurableSaver) -> None:
        instrument(saver, tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]

    def operations(self) -> list[Any]:
        return [dict(span.attributes or {})["db.operation.name"] for span in self.spans()]

    def points(self, name: str) -> list[Any]:
        found = self._reader.get_metrics_data()
        scopes = [scope for of in found.resource_metrics for scope in of.scope_metrics] if found else []
        return [
            point
            for scope in scopes
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def counts(self, name: str) -> list[float]:
        return [point.value for point in self.points(f"langgraph_durable.{name}")]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def attributes(of: Any) -> dict[str, Any]:
    return dict(of.attributes or {})


# --- spans ---


async def test_operations_of_a_graph_are_child_spans_of_the_caller(
    saver: DurableSaver, conninfo: str, drive: Driver, telemetry: Telemetry
) -> None:
    telemetry.instrument(saver)
    graph = chain(saver, lambda _: None)
    with telemetry.tracer.start_as_current_span("request") as request:
        if drive.kind == "sync":
            result = graph.invoke({"trail": ["secret-said"]}, config("secret-thread"), durability="sync")
        else:
            result = await graph.ainvoke(
                {"trail": ["secret-said"]}, config("secret-thread"), durability="sync"
            )
    assert result["trail"] == ["secret-said", *CHAIN]
    names = telemetry.operations()
    assert names[0] == "get_tuple"
    assert names.count("put") == len(CHAIN) + 2
    assert names.count("put_writes") >= len(CHAIN)
    where = conninfo_to_dict(conninfo)
    for span in telemetry.spans():
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
        assert attributes(span) == {
            "db.system.name": "postgresql",
            "db.namespace": f"{where['dbname']}|langgraph_durable",
            "db.operation.name": attributes(span)["db.operation.name"],
            "server.address": where["host"],
        } | ({} if where.get("port", "5432") == "5432" else {"server.port": int(str(where["port"]))})
        assert span.name == f"{attributes(span)['db.operation.name']} {where['dbname']}|langgraph_durable"
        assert span.status.status_code is StatusCode.UNSET
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "langgraph_durable"
        assert "secret" not in span.to_json()


EVERY: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "setup": tuple,
    "put": a_put,
    "put_writes": lambda: (config(checkpoint_id="none"), WRITES, "task"),
    "get_tuple": lambda: (config(),),
    "get_ulid": lambda: (config(),),
    "prune": lambda: (["thread"],),
    "copy_thread": lambda: ("thread", "copy"),
    "storage_stats": lambda: ("thread",),
    "delete_for_runs": lambda: (["run"],),
    "delete_thread": lambda: ("thread",),
}


async def test_every_operation_is_one_span(saver: DurableSaver, drive: Driver, telemetry: Telemetry) -> None:
    telemetry.instrument(saver)
    for name, arguments in EVERY.items():
        await drive(saver, name, *arguments())
    assert telemetry.operations() == list(EVERY)
    assert list(saver.metrics().operations) == list(EVERY)


async def test_operations_on_many_rows_are_spans(
    saver: DurableSaver, drive: Driver, telemetry: Telemetry
) -> None:
    await drive(saver, "put", *a_put())
    graph = chain(saver, lambda _: None)
    telemetry.instrument(saver)
    await drive(saver, "prune_all", keep_last=1)
    await drive(saver, "compact", graph, ["thread"])
    await drive(saver, "delete_thread", "thread")
    if drive.kind == "sync":
        saver.get_delta_channel_history(config=config(), channels=["messages"])
        assert not list(saver.timeline("thread"))
        assert not list(saver.pending_interrupts())
    else:
        await saver.aget_delta_channel_history(config=config(), channels=["messages"])
        assert not [entry async for entry in saver.atimeline("thread")]
    assert set(telemetry.operations()) >= {
        "prune_all",
        "compact",
        "delete_thread",
        "get_delta_channel_history",
        "timeline",
    }
    assert drive.kind == "async" or telemetry.operations()[-1] == "pending_interrupts"


async def test_each_page_of_a_list_is_a_span(
    saver: DurableSaver, drive: Driver, telemetry: Telemetry
) -> None:
    for number in range(5):
        await drive(saver, "put", *a_put(str(number)))
    telemetry.instrument(saver)
    assert len(await drive(saver, "list", None, limit=3)) == 3
    assert telemetry.operations() == ["list"]
    for _ in saver.list(None):
        assert not get_current_span().is_recording()  # no span is open while the caller handles an item
    assert telemetry.operations() == ["list"] * 2  # a page that is not full is the last
    assert saver.metrics().operations["list"].count == 2


# --- failures ---


async def test_failed_span_has_the_type_of_the_error_but_not_its_message(
    saver: DurableSaver, observer: Observer, drive: Driver, telemetry: Telemetry
) -> None:
    telemetry.instrument(saver)
    observer.rows("ALTER TABLE langgraph_durable.checkpoints ADD CHECK (thread_id <> 'secret')")
    with pytest.raises(psycopg.errors.CheckViolation, match="secret"):
        await drive(saver, "put", *a_put("secret"))
    with pytest.raises(InvalidConfigError):
        await drive(saver, "get_tuple", {"configurable": {"secret": 1}})
    by_database, by_us = telemetry.spans()
    assert attributes(by_database)["error.type"] == "23514"
    assert attributes(by_database)["db.response.status_code"] == "23514"
    assert attributes(by_us)["error.type"] == "InvalidConfigError"
    assert "db.response.status_code" not in attributes(by_us)
    for span in (by_database, by_us):
        assert span.status.status_code is StatusCode.ERROR
        assert not span.status.description
        assert not span.events
        assert "secret" not in span.to_json()
    assert {
        attributes(point)["error.type"] for point in telemetry.points("db.client.operation.duration")
    } == {
        "23514",
        "InvalidConfigError",
    }


async def test_cancelled_call_ends_its_span(
    saver: DurableSaver, observer: Observer, telemetry: Telemetry
) -> None:
    await saver.aput(*a_put())
    telemetry.instrument(saver)
    with observer.connection.transaction():
        observer.rows("LOCK TABLE langgraph_durable.checkpoints")
        call = asyncio.create_task(saver.aget_tuple(config()))
        await await_until(observer.blocked, "the call to wait")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    [span] = telemetry.spans()
    assert attributes(span)["error.type"] == "CancelledError"


def test_question_of_an_effect_is_not_a_failed_span(saver: DurableSaver, telemetry: Telemetry) -> None:
    telemetry.instrument(saver)

    def pay(fails: bool) -> str:
        if fails:
            raise TimeoutError("secret")
        return "paid"

    guarded = effect(name="pay", key="k", on_unknown="ask")(pay)
    builder = StateGraph(Flag)
    builder.add_node("pay", lambda state: {"said": guarded(state["fails"])})
    builder.add_edge(START, "pay")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"fails": True}, config(), durability="sync")
    [asked] = graph.invoke(None, config(), durability="sync")["__interrupt__"]
    answer = {"effect": asked.value["effect"], "decision": "happened", "result": "paid"}
    assert graph.invoke(Command(resume=answer), config(), durability="sync")["said"] == "paid"
    spans = [span for span in telemetry.spans() if "effect" in span.name]
    assert [attributes(span)["db.operation.name"] for span in spans] == [
        "begin_effect",
        "record_effect",  # its outcome is unknown
        "begin_effect",  # asks
        "begin_effect",  # gets the answer
    ]
    for span in spans:
        assert span.status.status_code is StatusCode.UNSET
        assert "error.type" not in attributes(span)
        assert "secret" not in span.to_json()
    assert saver.metrics().operations["begin_effect"].count == 3


def test_retry_is_part_of_its_span(saver: DurableSaver, observer: Observer, telemetry: Telemetry) -> None:
    telemetry.instrument(saver)
    saver.put(*a_put())
    observer.terminate(observer.backends())
    saver.put(*a_put("another"))
    assert telemetry.operations() == ["put", "put"]
    assert {span.status.status_code for span in telemetry.spans()} == {StatusCode.UNSET}


# --- metrics ---


async def test_metrics_equal_those_of_the_saver(
    saver: DurableSaver, drive: Driver, telemetry: Telemetry
) -> None:
    await drive(saver, "put", *a_put("before"))
    telemetry.instrument(saver)
    await asyncio.gather(*(drive(saver, "put", *a_put(str(n), {"messages": LARGE})) for n in range(40)))
    await drive(saver, "get_tuple", config("0"))
    found = saver.metrics()
    for name in (
        "batches",
        "batched_writes",
        "broken_batches",
        "retries",
        "segment_hits",
        "segment_misses",
        "pool_requests",
        "pool_waits",
        "pool_wait_seconds",
        "waiting_writes",
        "waiting_bytes",
    ):
        assert telemetry.counts(name) == [getattr(found, name)], name
    assert telemetry.counts("pool_requests") > [0]
    durations = {
        attributes(point)["db.operation.name"]: point
        for point in telemetry.points("db.client.operation.duration")
    }
    assert {name: point.count for name, point in durations.items()} == {"put": 40, "get_tuple": 1}
    assert durations["put"].explicit_bounds == (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
    assert 0 < durations["put"].sum <= found.operations["put"].seconds
    [point] = telemetry.points("langgraph_durable.batches")
    assert attributes(point) == {
        name: value for name, value in attributes(durations["put"]).items() if name != "db.operation.name"
    }


def test_counters_are_shared_by_savers_and_outlive_them(conninfo: str, telemetry: Telemetry) -> None:
    for calls in (3, 4):
        with DurableSaver.from_conn_string(conninfo) as saver:
            telemetry.instrument(saver)
            for _ in range(calls):
                saver.put(*a_put())
            requests = telemetry.counts("pool_requests")
        del saver
        gc.collect()
        assert telemetry.counts("pool_requests") == requests
    assert requests == [3 + 4]
    assert telemetry.counts("waiting_writes") == []  # no saver is left
    assert len(telemetry.spans()) == 3 + 4


def test_savers_of_two_schemas_have_separate_attributes(conninfo: str, telemetry: Telemetry) -> None:
    with (
        DurableSaver.from_conn_string(conninfo) as one,
        DurableSaver.from_conn_string(conninfo, schema="another") as other,
    ):
        for saver in (one, other):
            telemetry.instrument(saver)
            saver.setup()
            saver.put(*a_put())
        spaces = {attributes(p)["db.namespace"] for p in telemetry.points("langgraph_durable.pool_requests")}
    database = conninfo_to_dict(conninfo)["dbname"]
    assert spaces == {f"{database}|langgraph_durable", f"{database}|another"}


# --- which savers ---


def test_clone_is_instrumented_and_a_second_call_changes_nothing(
    saver: DurableSaver, telemetry: Telemetry
) -> None:
    telemetry.instrument(saver)
    telemetry.instrument(saver)
    clone = copy.copy(saver)  # as LangGraph does
    clone.get_tuple(config())
    assert telemetry.operations() == ["get_tuple"]


async def test_attributes_of_given_pools_and_connections(conninfo: str, telemetry: Telemetry) -> None:
    where = make_conninfo(conninfo, host="127.0.0.1", port=6543)
    database = conninfo_to_dict(conninfo)["dbname"]
    pool: ConnectionPool[Any] = ConnectionPool(where, open=False)
    instrumented = DurableSaver(pool)
    telemetry.instrument(instrumented)
    with pytest.raises(Exception, match="not open"):
        instrumented.get_tuple(config())
    assert attributes(telemetry.spans()[-1]) == {
        "db.system.name": "postgresql",
        "db.namespace": f"{database}|langgraph_durable",
        "db.operation.name": "get_tuple",
        "server.address": "127.0.0.1",
        "server.port": 6543,
        "error.type": "SaverClosedError",
    }
    async with await AsyncConnection.connect(conninfo) as connection:
        instrumented = DurableSaver(async_pool=connection)
        telemetry.instrument(instrumented)
        await instrumented.aget_tuple(config())
    assert attributes(telemetry.spans()[-1])["db.namespace"] == f"{database}|langgraph_durable"


def test_several_hosts_have_no_address(telemetry: Telemetry) -> None:
    with DurableSaver.from_conn_string("host=nowhere.invalid,elsewhere.invalid", retry_timeout=0) as nowhere:
        telemetry.instrument(nowhere)
        with pytest.raises(ConnectionFailedError):
            nowhere.get_tuple(config())
    [span] = telemetry.spans()
    assert attributes(span) == {
        "db.system.name": "postgresql",
        "db.namespace": "langgraph_durable",
        "db.operation.name": "get_tuple",
        "error.type": "ConnectionFailedError",
    }


def test_other_objects_are_refused(telemetry: Telemetry) -> None:
    with pytest.raises(InvalidConfigError, match="needs a DurableSaver, got object"):
        instrument(object())  # type: ignore[arg-type]


def test_global_providers_are_the_default(saver: DurableSaver) -> None:
    instrument(saver, meter_provider=global_metrics.get_meter_provider())
    saver.put(*a_put())  # to the default provider, which drops it
    assert saver.metrics().operations["put"].count == 1


# --- off, and not installed ---

OFF = """
import sys

class Watch:
    "Notes which file imports OpenTelemetry; langsmith does, if it is there."
    importers = []

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if name.partition(".")[0] == "opentelemetry":
            self.importers.append(frame.f_code.co_filename)

sys.meta_path.insert(0, Watch())

from tests.samples import a_put, config
import langgraph_durable
with langgraph_durable.DurableSaver.from_conn_string(sys.argv[1]) as saver:
    saver.put(*a_put())
    assert saver.get_tuple(config()) and list(saver.list(None)) and saver.metrics().retries == 0
assert "langgraph_durable.otel" not in sys.modules
assert not any("langgraph_durable/" in importer for importer in Watch.importers), Watch.importers
"""

MISSING = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
import langgraph_durable
import langgraph_durable.otel
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_opentelemetry_is_not_imported_by_default(conninfo: str) -> None:
    ended = run(OFF, conninfo)
    assert ended.returncode == 0, ended.stderr


def test_missing_extra_is_named() -> None:
    ended = run(MISSING)
    assert ended.returncode == 1
    assert "needs OpenTelemetry: pip install 'langgraph-durable[otel]'" in ended.stderr.splitlines()[-1]
