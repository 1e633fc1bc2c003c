"""Export spans and metrics to OpenTelemetry (extra [otel]; this example also needs opentelemetry-sdk)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from langgraph_durable import DurableSaver, embedded
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.otel import instrument


class Printer(SpanExporter):
    """Prints the saver's spans; an application would use an OTLP exporter."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Print each span's parent and outcome."""
        for span in spans:
            attributes = span.attributes or {}
            if "db.operation.name" in attributes:
                parent = "child of request" if span.parent else "no parent"
                outcome = attributes.get("error.type", "ok")
                print(f"{attributes['db.operation.name']!s}, {parent}: {outcome!s}")
        return SpanExportResult.SUCCESS


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}


def puts_counted(reader: InMemoryMetricReader) -> int:
    """Return the number of puts, from the histogram of durations."""
    data = reader.get_metrics_data()
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    return sum(
        point.count
        for metric in metrics
        if metric.name == "db.client.operation.duration"
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint) and (point.attributes or {})["db.operation.name"] == "put"
    )


def main() -> None:
    """Run two requests, and make one invalid call."""
    tracers, reader = TracerProvider(), InMemoryMetricReader()
    tracers.add_span_processor(SimpleSpanProcessor(Printer()))
    config: RunnableConfig = {"configurable": {"thread_id": "telemetry"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("telemetry")
        instrument(saver, tracer_provider=tracers, meter_provider=MeterProvider([reader]))

        builder = StateGraph(MessagesState)
        builder.add_node("reply", reply)
        builder.add_edge(START, "reply")
        graph: Any = builder.compile(checkpointer=saver)
        for text in ("Hello", "Still there?"):
            with tracers.get_tracer("app").start_as_current_span("request"):
                graph.invoke({"messages": [("user", text)]}, config, durability="sync")
        try:
            saver.get_tuple({})
        except InvalidConfigError as exc:
            print(exc)
        print("puts:", puts_counted(reader))
        print("waits for a connection:", saver.metrics().pool_waits)


if __name__ == "__main__":
    main()
