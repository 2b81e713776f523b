"""A server whose requests live resident, on the CPU: the same answers, while the host plans ahead or not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from live_server import Running, Serve, texts

LONG: dict[str, Any] = {"ignore_eos": True}
BODIES: list[dict[str, Any]] = [
    {"prompt": "hello hello hello", "temperature": 0, "max_tokens": 12, **LONG},
    {"prompt": "one two", "temperature": 1.0, "seed": 3, "n": 2, "max_tokens": 20, **LONG},
    {
        "prompt": "ab ab",
        "temperature": 0,
        "max_tokens": 9,
        "logprobs": 2,
        "echo": True,
        "frequency_penalty": 1.5,
    },
    {"prompt": "ab", "temperature": 0, "max_tokens": 9, "min_tokens": 4, "logit_bias": {"65": 5}},
    {"prompt": "stop here", "temperature": 0, "max_tokens": 30, "stop": ["e"], **LONG},
    {
        "prompt": "ab",
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 9,
        "response_format": {"type": "regex", "pattern": "[abc]{6}"},
    },
    {"prompt": "hello", "temperature": 0, "max_tokens": 30, "stop_token_ids": list(range(60, 66))},
]


@pytest.fixture(scope="module", params=["holdback", "overlapped"])
def own(request: pytest.FixtureRequest, serve: Serve) -> Iterator[Running]:
    """Return a resident server under a policy, checked for leaks at the end."""
    given: dict[str, Any] = {"params": {"shortest": 1}, "pages": 400, "max_running": 5}
    with serve("ngram", resident=True, policy=request.param, **given) as running:
        yield running
        running.settled()


def test_answers_are_those_of_the_cpu_runner(own: Running, server: Running) -> None:
    """Requests in company, streamed or whole, some of which end at a stop, or follow a grammar."""
    expected = [server.complete(**body)["choices"] for body in BODIES]
    with ThreadPoolExecutor(8) as pool:
        whole = pool.map(lambda body: own.complete(**body)["choices"], BODIES)
        streamed = pool.map(lambda body: own.stream("/v1/completions", **body), BODIES)
    found = list(whole)
    scores = [
        [each.pop("logprobs") or {} for choices in answers for each in choices]
        for answers in (expected, found)
    ]
    assert expected == found
    for mine, theirs in zip(*scores, strict=True):
        assert mine.get("tokens") == theirs.get("tokens")
        numbers = mine.get("token_logprobs", []), theirs.get("token_logprobs", [])
        assert numbers[0][1:] == pytest.approx(numbers[1][1:], abs=1e-5)
    for choices, events in zip(expected, streamed, strict=True):
        assert [each["text"] for each in choices] == [texts(events, each["index"]) for each in choices]
        ends = [choice["finish_reason"] for event in events for choice in event["choices"]]
        assert [each["finish_reason"] for each in choices] == [each for each in ends if each]


def test_leavers_change_nobody_elses_answer(own: Running, server: Running) -> None:
    """A client that leaves in the middle of a round that is in flight takes no one and no page along."""
    before = own.settled()
    for _ in range(3):
        body = {"prompt": "hello", "max_tokens": 900, "n": 2, "stream": True, **LONG}
        with own.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_bytes())
            beside = own.complete(**BODIES[0])
        assert server.complete(**BODIES[0])["choices"] == beside["choices"]
    after = own.settled()
    assert after["vllm:request_success_total/abort"] > before.get("vllm:request_success_total/abort", 0)
    assert after["fsm_spec:launches_total"] > before["fsm_spec:launches_total"]


def test_policies_switch_within_the_lines_that_there_are(own: Running) -> None:
    """The number of requests at once that the start gave holds for every policy that is named."""
    first = own.http.get("/v1/fsm").json()["policy"]
    for policy in ({"policy": "mine", "admit": "reserve", "lag": first["lag"]}, first["policy"]):
        switched = own.http.put("/v1/fsm/policy", json={"policy": policy})
        assert (switched.status_code, switched.json().get("max_running")) == (200, 5)
        assert own.complete(**BODIES[0])["usage"]["completion_tokens"] == 12
    for wrong in ({"max_running": 6, "lag": first["lag"]}, {"lag": 1 - first["lag"]}):
        refused = own.http.put("/v1/fsm/policy", json={"policy": {"policy": "more", **wrong}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "policy")
