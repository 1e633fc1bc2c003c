"""OpenTelemetry spans and metrics of a saver; needs the extra `[otel]`.

    from langgraph_durable.otel import instrument

    instrument(saver)

Names and attributes follow OpenTelemetry's semantic conventions for database clients. Each call of a method is a span,
including its retries and waiting; for `list`, `timeline` and `pending_interrupts`, each page is one. Effects have
`begin_effect`, which includes waiting, verification and questions, and `record_effect` for what is recorded afterwards.
A span's parent is the caller's current span; statements traced by psycopg's own instrumentation are its children.
Attributes contain no content of users or agents, no thread ids and no error messages.
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
from langgraph_durable._context import SaverContext
from langgraph_durable._metrics import MetricSources
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.saver import DurableSaver

try:
    from opentelemetry import metrics, trace
except ImportError as exc:
    raise ImportError(
        "langgraph_durable.otel needs OpenTelemetry: pip install 'langgraph-durable[otel]'"
    ) from exc

__all__ = ["instrument"]

_NAME = "langgraph_durable"
_CONVENTIONS = "https://opentelemetry.io/schemas/1.33.0"  # the first with stable database conventions
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)  # in seconds, as the conventions advise
_DEFAULT_PORT = "5432"

Attributes = dict[str, str | int]
Target = tuple[tuple[str, str | int], ...]
"""The attributes of a database, as a key."""

# Fields of SaverMetrics: name -> unit, description.
_COUNTED = {
    "batches": ("{batch}", "Batches of writes that waited at the same time and were sent together"),
    "batched_writes": ("{write}", "Writes sent in batches"),
    "broken_batches": ("{batch}", "Batches that failed and whose writes were then sent one by one"),
    "retries": ("{retry}", "Transient faults after which work was run again"),
    "segment_hits": ("{segment}", "Segments that reads found in this process's cache"),
    "segment_misses": ("{segment}", "Segments that reads had to fetch"),
    "pool_requests": ("{request}", "Requests for a connection"),
    "pool_waits": ("{request}", "Requests for a connection that had to wait"),
    "pool_wait_seconds": ("s", "Time spent waiting for connections"),
}
_CURRENT = {
    "waiting_writes": ("{write}", "Writes waiting for a batch now"),
    "waiting_bytes": ("By", "Bytes of the writes waiting for a batch now"),
}


def instrument(
    saver: DurableSaver,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Send the spans and metrics of a saver and its clones to OpenTelemetry from now on.

    Spans are named by operation and database, such as `put app|langgraph_durable`. Their attributes are
    `db.system.name`, `db.operation.name`, `db.namespace` (database and schema, as passed to the saver),
    `server.address` and `server.port`. After a failure there are also `error.type`, which is Postgres's SQLSTATE or the
    exception's class, and, with a SQLSTATE, `db.response.status_code`. The metric `db.client.operation.duration` has
    the same attributes. Metrics under `langgraph_durable.` are the fields of `saver.metrics()`.

    A second call for the same saver changes nothing.

    Args:
        saver: The saver, or a proxy in front of it.
        tracer_provider: Where spans go; by default OpenTelemetry's global provider, even if it is set later.
        meter_provider: Where metrics go; by default the global provider.

    Raises:
        InvalidConfigError: `saver` is not a DurableSaver.
    """
    context = getattr(saver, "durable_context", None)  # found also behind the Agent Server's proxy
    if not isinstance(context, SaverContext):
        raise InvalidConfigError(f"instrument needs a DurableSaver, got {type(saver).__name__}")
    if meter_provider is metrics.get_meter_provider():
        meter_provider = None
    with _instrumenting:
        if context.metrics.tracing is not None:
            return
        if meter_provider not in _meters:
            _meters[meter_provider] = _Meters(meter_provider)
        meters = _meters[meter_provider]
        target = _target(context)
        meters.watch(context.metric_sources, target)
        tracer = trace.get_tracer(_NAME, __version__, tracer_provider, _CONVENTIONS)
        context.metrics.tracing = partial(_traced, tracer, meters.duration, target)


def _target(context: SaverContext) -> Target:
    """Return the attributes of a saver's database that are known without connecting."""
    connections = context.connections or context.async_connections
    parameters = connections.parameters() if connections is not None else {}
    names = [parameters.get("dbname"), context.schema]
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
    """Run the block in a current span, and record its duration."""
    attributes: Attributes = {**dict(target), "db.operation.name": operation}
    with tracer.start_as_current_span(
        f"{operation} {attributes['db.namespace']}",
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,  # messages may quote stored values
        set_status_on_exception=False,
    ) as span:
        began = time.perf_counter()
        failed: Attributes = {}
        try:
            yield
        except GraphBubbleUp:  # an effect asks a human
            raise
        except BaseException as exc:  # cancellation, too
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
    """The instruments of one meter provider, shared by all savers: a name can be registered only once.

    Counters must never decrease, although savers and pools end and take their counts with them. So each observation
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
                f"{_NAME}.{name}", [partial(self._measure, name)], unit, description
            )

    def watch(self, sources: MetricSources, target: Target) -> None:
        """Observe a saver's metrics as long as it lives."""
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

    def _measure(self, name: str, _: metrics.CallbackOptions) -> list[metrics.Observation]:
        with self._lock:
            now: Counter[Target] = Counter()
            for sources, target in list(self._targets.items()):
                now[target] += getattr(sources.read(), name)
            return _observations(now)


def _observations(values: Mapping[Target, float]) -> list[metrics.Observation]:
    return [metrics.Observation(value, dict(target)) for target, value in values.items()]


_instrumenting = threading.Lock()
_meters: dict[metrics.MeterProvider | None, _Meters] = {}
"""Provider -> its instruments; None is the global provider."""
