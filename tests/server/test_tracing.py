"""OpenTelemetry's spans reach a collector over a real socket, under the client's own trace."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from live_server import Serve
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_spans_of_a_request(serve: Serve) -> None:
    """A span for each choice, with counts and without text."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:  # noqa: ANN401 -- as overridden
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        with serve("ngram", pages=200, otlp_endpoint=endpoint) as running:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"prompt": "secret words", "max_tokens": 5, "n": 2, "ignore_eos": True}
            assert running.http.post("/v1/completions", json=body, headers=headers).status_code == 200
        collector.shutdown()
    spans = [
        span
        for each in bodies
        for resource in ExportTraceServiceRequest.FromString(each).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == 2
    assert {(TRACE, PARENT)} == {(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans}
    for span in spans:
        found = {each.key: each.value for each in span.attributes}
        assert found["gen_ai.usage.output_tokens"].int_value == 5
        assert [event.name for event in span.events] == ["started", "first token"]
        assert span.start_time_unix_nano < span.end_time_unix_nano
    assert not any(b"secret" in each for each in bodies)
