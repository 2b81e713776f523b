"""The server against its own OpenAPI document: whatever comes, it answers as the document says, and never with 500.

`FSM_SPEC_SOAK_EXAMPLES` asks for more examples than CI has time for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from live_server import Running, Serve
from schemathesis import Case, GenerationMode
from schemathesis.checks import content_type_conformance, not_a_server_error, response_schema_conformance
from schemathesis.checks import status_code_conformance as documented_status

EXAMPLES = int(os.environ.get("FSM_SPEC_SOAK_EXAMPLES", "300"))
# Operations that take a body are where examples differ; sound and broken ones get half of them each.
BODIES = {
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/fsm/policy": "PUT",
}
CHECKS = [not_a_server_error, documented_status, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def fuzzed(serve: Serve) -> Iterator[Running]:
    """Return a server with short limits, so that no example takes long."""
    with serve("ngram", pages=60, max_model_len=48, max_queue=12) as running:
        yield running
        running.settled()
        assert running.http.get("/health").status_code == 200


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", BODIES)
def test_no_example_breaks_the_server(fuzzed: Running, path: str, mode: GenerationMode) -> None:
    """Answers have the statuses, types and shapes that the document promises."""
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    statuses: set[int] = set()

    @given(case=schema[path][BODIES[path]].as_strategy(generation_mode=mode))
    @settings(
        max_examples=max(1, EXAMPLES // (2 * len(BODIES))),
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def check(case: Case[Any]) -> None:
        response = case.call(base_url=fuzzed.url, timeout=30)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    check()
    assert statuses <= {200, 400, 404, 405, 408, 415}
    if mode is GenerationMode.NEGATIVE:
        assert 400 in statuses
