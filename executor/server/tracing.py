"""OpenTelemetry: one span a request (a span for each choice), sent to an OTLP endpoint; off unless one is named.

Attribute names are those of OpenTelemetry's conventions for generative AI; no span holds text.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.served import Served


class Exporter(Protocol):
    """Be what takes finished spans: an exporter of OpenTelemetry."""

    def export(self, spans: Any) -> Any:  # noqa: ANN401 -- the library's own types
        """Take spans."""


class Tracing:
    """Hear of jobs as the worker's observer, and make a span of each that ends."""

    def __init__(self, served: Served, exporter: Exporter) -> None:
        # Imported here: only servers with an endpoint need the library.
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self.served = served
        self._provider = TracerProvider(resource=Resource.create({"service.name": "fsm-spec"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))  # type: ignore[arg-type]
        self._tracer = self._provider.get_tracer("fsm_spec.server")
        self._parent = TraceContextTextMapPropagator()
        # Jobs carry times of the performance counter; spans want the time of day.
        self._offset = time.time_ns() - time.perf_counter_ns()

    @classmethod
    def to_endpoint(cls, served: Served, endpoint: str) -> Tracing:
        """Send spans by OTLP over HTTP to a collector, such as http://localhost:4318/v1/traces."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        return cls(served, OTLPSpanExporter(endpoint=endpoint))

    def ended(self, job: Job, reason: str) -> None:
        """Make the span of a job that is at its end."""
        span = self._tracer.start_span(
            "request",
            context=self._parent.extract({"traceparent": job.parent}) if job.parent else None,
            start_time=self._time(job.arrived),
            attributes={
                "gen_ai.request.id": job.request_id,
                "gen_ai.request.model": self.served.name,
                "gen_ai.request.max_tokens": job.limit,
                "gen_ai.usage.input_tokens": len(job.prompt),
                "gen_ai.usage.output_tokens": job.emitted,
                "gen_ai.response.finish_reasons": (reason,),
                "fsm_spec.choice": job.index,
                "fsm_spec.language.spec": self.served.table.name,
                "fsm_spec.digest": self.served.table.digest,
            },
        )
        for name, when in (("started", job.started), ("first token", job.first_token)):
            if when:
                span.add_event(name, timestamp=self._time(when))
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _time(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset
