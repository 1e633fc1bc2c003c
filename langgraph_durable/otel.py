"""OpenTelemetry: a span for each of a saver's operations, and its metrics; needs the extra `[otel]`.

    from langgraph_durable.otel import instrument

    instrument(saver)

Names and attributes are those of OpenTelemetry's semantic conventions for database clients. A span is a call of a
method, or the fetching of one page of `list`, `timeline` and `pending_interrupts`; retries and waiting are inside it.
Effects have `begin_effect`, which also waits, verifies and asks, and `record_effect` for what is recorded after it.
Its parent is the caller's current span, and statements that psycopg's own instrumentation traces are its children.
Nothing that a user or an agent said is in an attribute, nor an id of a thread, nor an error's message.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import psycopg
from langgraph.errors import GraphBubbleUp

from langgraph_durable import __version__
from langgraph_durable._metrics import MetricSources
from langgraph_durable.saver import DurableSaver, require_saver

try:
    from opentelemetry import metrics, trace
except ImportError as exc:
    raise ImportError(
        "langgraph_durable.otel needs OpenTelemetry: pip install 'langgraph-durable[otel]'"
    ) from exc

__all__ = ["instrument"]

_NAME = "langgraph_durable"
_CONVENTIONS = "https://opentelemetry.io/schemas/1.33.0"  # those that made the database's stable
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)  # as they advise, in seconds
_DEFAULT_PORT = "5432"

Attributes = dict[str, str | int]
Target = tuple[tuple[str, str | int], ...]
"""The attributes that tell which database, as a key."""

# What SaverMetrics tells, by its names: unit, description.
_COUNTED = {
    "batches": ("{batch}", "Times that writes which waited at the same time went out together"),
    "batched_writes": ("{write}", "Writes that went out in batches"),
    "broken_batches": ("{batch}", "Batches that failed, so that their writes went alone"),
    "retries": ("{retry}", "Transient faults after which work was run again"),
    "segment_hits": ("{segment}", "Segments that reads found in this process"),
    "segment_misses": ("{segment}", "Segments that reads had to fetch"),
    "pool_requests": ("{request}", "Connections that were asked for"),
    "pool_waits": ("{request}", "Connections that were asked for and not free at once"),
    "pool_wait_seconds": ("s", "Time that was waited for connections"),
}
_CURRENT = {
    "waiting_writes": ("{write}", "Writes that wait for a batch just now"),
    "waiting_bytes": ("By", "Bytes of the writes that wait for a batch just now"),
}


def instrument(
    saver: DurableSaver,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Send a saver's spans and metrics, and those of its clones, to OpenTelemetry from here on.

    Spans are named by operation and database, `put app|langgraph_durable`, and have the attributes `db.system.name`,
    `db.operation.name`, `db.namespace` (database and schema, as the saver was given them), `server.address` and
    `server.port`; after a failure `error.type`, which is Postgres's SQLSTATE or the exception's class, and
    `db.response.status_code` if there is a SQLSTATE. `db.client.operation.duration` has the same. Metrics under
    `langgraph_durable.` are those of `saver.metrics()`, by the same names.

    A saver that is instrumented already stays as it is.

    Args:
        saver: The saver, or a proxy in front of it.
        tracer_provider: Where spans go; by default OpenTelemetry's global one, also if it is set later.
        meter_provider: Where metrics go; by default the global one.

    Raises:
        InvalidConfig: `saver` is something else.
    """
    saver = require_saver(saver, "instrument")
    if meter_provider is metrics.get_meter_provider():
        meter_provider = None
    with _instrumenting:
        if saver._metrics.tracing is not None:
            return
        if meter_provider not in _meters:
            _meters[meter_provider] = _Meters(meter_provider)
        meters = _meters[meter_provider]
        target = _target(saver)
        meters.watch(saver._metric_sources, target)
        tracer = trace.get_tracer(_NAME, __version__, tracer_provider, _CONVENTIONS)
        saver._metrics.tracing = partial(_traced, tracer, meters.duration, target)


def _target(saver: DurableSaver) -> Target:
    """Tell which database a saver works on, by what is known of it without asking."""
    connections = saver._blocking or saver._asynchronous
    parameters = connections.parameters() if connections is not None else {}
    names = [parameters.get("dbname"), saver.schema]
    found: Attributes = {
        "db.system.name": "postgresql",
        "db.namespace": "|".join(str(name) for name in names if name),
    }
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or _DEFAULT_PORT)
    if host and "," not in host:
        found["server.address"] = host
        if port != _DEFAULT_PORT and port.isdecimal():
            found["server.port"] = int(port)
    return tuple(found.items())


@contextmanager
def _traced(
    tracer: trace.Tracer, duration: metrics.Histogram, target: Target, operation: str
) -> Iterator[None]:
    """Make a span of the block, the current one inside it, and record how long it took."""
    attributes: Attributes = {**dict(target), "db.operation.name": operation}
    with tracer.start_as_current_span(
        f"{operation} {attributes['db.namespace']}",
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,  # its message may quote what was to be stored
        set_status_on_exception=False,
    ) as span:
        began = time.perf_counter()
        failed: Attributes = {}
        try:
            yield
        except GraphBubbleUp:  # an effect asks a human, which is no failure
            raise
        except BaseException as exc:  # also of who is cancelled
            failed = _failure(exc)
            span.set_attributes(failed)
            span.set_status(trace.StatusCode.ERROR)
            raise
        finally:
            duration.record(time.perf_counter() - began, attributes | failed)


def _failure(exc: BaseException) -> Attributes:
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        return {"error.type": exc.sqlstate, "db.response.status_code": exc.sqlstate}
    return {"error.type": type(exc).__qualname__}


class _Meters:
    """The instruments of one meter provider, which all savers share: it takes an instrument of a name only once.

    Counts only grow, though savers and the pools of event loops end, and what they had counted with them: each look
    adds what was counted since the one before.
    """

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        self._lock = threading.Lock()
        self._targets: WeakKeyDictionary[MetricSources, Target] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[MetricSources, dict[str, float]] = WeakKeyDictionary()
        self._totals: dict[str, Counter[Target]] = {name: Counter() for name in _COUNTED}
        meter = metrics.get_meter(_NAME, __version__, provider, _CONVENTIONS)
        self.duration = meter.create_histogram(
            "db.client.operation.duration",
            "s",
            "Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        for name, (unit, description) in _COUNTED.items():
            meter.create_observable_counter(
                f"{_NAME}.{name}", [partial(self._count, name)], unit, description
            )
        for name, (unit, description) in _CURRENT.items():
            meter.create_observable_up_down_counter(
                f"{_NAME}.{name}", [partial(self._look, name)], unit, description
            )

    def watch(self, sources: MetricSources, target: Target) -> None:
        """Read a saver's metrics from here on, as long as it lives."""
        with self._lock:
            self._targets[sources] = target
            self._seen[sources] = {}

    def _count(self, name: str, _: metrics.CallbackOptions) -> list[metrics.Observation]:
        with self._lock:
            for sources, target in list(self._targets.items()):
                counted, seen = getattr(sources.read(), name), self._seen[sources]
                self._totals[name][target] += max(counted - seen.get(name, 0), 0)
                seen[name] = counted
            return _observations(self._totals[name])

    def _look(self, name: str, _: metrics.CallbackOptions) -> list[metrics.Observation]:
        with self._lock:
            now: Counter[Target] = Counter()
            for sources, target in list(self._targets.items()):
                now[target] += getattr(sources.read(), name)
            return _observations(now)


def _observations(values: Mapping[Target, float]) -> list[metrics.Observation]:
    return [metrics.Observation(value, dict(target)) for target, value in values.items()]


_instrumenting = threading.Lock()
_meters: dict[metrics.MeterProvider | None, _Meters] = {}
"""By the provider; None is the global one."""
