"""What a saver does, in OpenTelemetry (the extra [otel]; and, to show it here, pip install opentelemetry-sdk)."""

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
    """Prints the saver's spans; yours would be an OTLP exporter."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Print where a span belongs, and how it ended."""
        for span in spans:
            about = span.attributes or {}
            if "db.operation.name" in about:
                caller = "request" if span.parent else "nobody"
                ended = about.get("error.type", "ok")
                print(f"{about['db.operation.name']!s}, in the trace of {caller}: {ended!s}")
        return SpanExportResult.SUCCESS


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a model."""
    return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}


def puts_counted(reader: InMemoryMetricReader) -> int:
    """Return how often the saver put a checkpoint, from the histogram of durations."""
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
    """Answer two requests, and ask for something wrong."""
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
        for said in ("Hello", "Still there?"):
            with tracers.get_tracer("app").start_as_current_span("request"):
                graph.invoke({"messages": [("user", said)]}, config, durability="sync")
        try:
            saver.get_tuple({})
        except InvalidConfigError as exc:
            print(exc)
        print("puts:", puts_counted(reader))
        print("connections that were waited for:", saver.metrics().pool_waits)


if __name__ == "__main__":
    main()
