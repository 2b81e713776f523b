"""A server whose requests live resident, on the CPU: the same answers, while the host plans ahead or not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from live_server import Running, Serve

BODIES: list[dict[str, Any]] = [
    {"prompt": "hello hello hello", "temperature": 0, "max_tokens": 12, "ignore_eos": True},
    {"prompt": "one two", "temperature": 1.0, "seed": 3, "max_tokens": 20, "ignore_eos": True},
    {
        "prompt": "ab ab",
        "temperature": 0,
        "max_tokens": 9,
        "logprobs": 2,
        "echo": True,
        "frequency_penalty": 1.5,
    },
    {"prompt": "ab", "temperature": 0, "max_tokens": 9, "min_tokens": 4, "logit_bias": {"65": 5}},
    {"prompt": "stop here", "temperature": 0, "max_tokens": 30, "stop": ["e"], "ignore_eos": True},
]


@pytest.mark.parametrize("policy", ["holdback", "overlapped"])
def test_answers_are_those_of_the_cpu_runner(policy: str, serve: Serve, server: Running) -> None:
    """Requests in company, one of which ends at a stop string; a grammar is refused by a sentence."""
    expected = [server.complete(**body)["choices"][0] for body in BODIES]
    with serve(
        "ngram", params={"shortest": 1}, pages=400, resident=True, policy=policy, max_running=4
    ) as own:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda body: own.complete(**body)["choices"][0], BODIES))
        wanted, given = ([each.pop("logprobs") or {} for each in choices] for choices in (expected, found))
        assert expected == found
        for mine, theirs in zip(wanted, given, strict=True):
            assert mine.get("tokens") == theirs.get("tokens")
            numbers = mine.get("token_logprobs", []), theirs.get("token_logprobs", [])
            assert numbers[0][1:] == pytest.approx(numbers[1][1:], abs=1e-5)
        refused = own.post("/v1/completions", prompt="a", response_format={"type": "regex", "pattern": "a+"})
        assert 400 == refused.status_code
        assert "without --resident" in refused.json()["error"]["message"]
        assert expected[0]["text"] == own.complete(**BODIES[0])["choices"][0]["text"]
        own.settled()
