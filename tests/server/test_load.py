"""A crowd, and people who behave badly: afterwards pages free = pool, no task is left, and the counters add up."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from live_server import SETTLE_SECONDS, Running, Serve

from fsm_spec.executor.server import intake, logs
from fsm_spec.executor.server.engines import OneEngine

# `FSM_SPEC_SOAK_REQUESTS` asks for more than CI has time for.
REQUESTS = int(os.environ.get("FSM_SPEC_SOAK_REQUESTS", "200"))
LONG: dict[str, Any] = {"ignore_eos": True}


class Totals:
    """Count what clients saw, to be held against the server's own counters."""

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.whole = 0
        self.refused: list[int] = []

    def add(self, usage: dict[str, Any]) -> None:
        """Count a whole answer."""
        self.prompt += usage["prompt_tokens"]
        self.completion += usage["completion_tokens"]
        self.whole += 1


async def well_behaved(client: httpx.AsyncClient, source: random.Random, totals: Totals) -> None:
    """Ask for something usual, as a stream or whole."""
    body: dict[str, Any] = {
        "prompt": source.choice(["hello " * 9, "世界 🙂 é", "x", [1, 2, 3, 1, 2, 3, 1, 2]]),
        "max_tokens": source.randrange(1, 20),
        "temperature": source.choice([0, 1.0]),
        "stop": source.choice([None, ["e"], ["\ufffd"]]),
        "n": source.choice([1, 1, 2]),
    }
    if source.random() < 0.5:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        totals.add(response.json()["usage"])
        return
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    totals.add(json.loads(lines[-2].removeprefix("data: "))["usage"])


async def leaver(client: httpx.AsyncClient, source: random.Random, totals: Totals) -> None:
    """Leave in the middle of a stream, or before an answer."""
    del totals  # nobody knows what a leaver got
    body = {"prompt": "hello " * 5, "max_tokens": 300, "stream": source.random() < 0.7, **LONG}
    try:
        async with client.stream("POST", "/v1/completions", json=body, timeout=0.3) as response:
            async for _ in response.aiter_bytes():
                if source.random() < 0.3:
                    return
    except httpx.TimeoutException:
        return


async def malformed(client: httpx.AsyncClient, source: random.Random, totals: Totals) -> None:
    """Send what is no request."""
    content = source.choice(
        [b"{", b'{"prompt": 1}', b"\xff", b'{"prompt": "a", "temperature": "hot"}', b"[]"]
    )
    response = await client.post("/v1/completions", content=content, headers=Running.JSON)
    assert response.status_code == 400
    totals.refused.append(400)


async def crowd(url: str, requests: int, totals: Totals) -> None:
    """Send a mixture of all, at most 32 at a time."""
    source = random.Random(5)
    room = asyncio.Semaphore(32)
    async with httpx.AsyncClient(base_url=url, timeout=180) as client:

        async def one(index: int) -> None:
            kind = well_behaved if index % 5 < 3 else leaver if index % 5 == 3 else malformed
            async with room:
                await kind(client, random.Random(source.random()), totals)

        async with asyncio.TaskGroup() as group:
            for index in range(requests):
                group.create_task(one(index))


def test_crowd_of_all_kinds(serve: Serve) -> None:
    """Disconnects, floods, malformed bodies and characters cut in two leave no trace but in the counters."""
    with serve("ngram", params={"shortest": 1}, pages=120) as running:
        tasks = running.tasks()
        totals = Totals()
        asyncio.run(crowd(running.url, REQUESTS, totals))
        found = running.settled()
        assert totals.whole == 3 * REQUESTS // 5
        ended = found["vllm:request_success_total/stop"] + found["vllm:request_success_total/length"]
        aborted = found["vllm:request_success_total/abort"]
        assert totals.whole <= ended
        assert aborted > 0
        assert totals.completion <= found["vllm:generation_tokens_total"]
        assert len(totals.refused) == found["fsm_spec:requests_rejected_total"] - found.get(
            "fsm_spec:requests_rejected_total/499", 0
        )
        accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
        assert 0 < accepted <= found["vllm:spec_decode_num_draft_tokens_total"]
        assert accepted == found["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
        places = [
            found.get(f"vllm:spec_decode_num_accepted_tokens_per_pos_total/{place}", 0) for place in range(4)
        ]
        assert sorted(places, reverse=True) == places
        running.http.close()
        until = time.monotonic() + SETTLE_SECONDS
        while running.tasks() > tasks and time.monotonic() < until:
            time.sleep(0.05)
        assert running.tasks() <= tasks


def test_counters_are_what_clients_got(serve: Serve) -> None:
    """Without leavers every emitted token stands in somebody's usage."""
    with serve("isd", pages=200) as running:
        totals = Totals()

        async def all_well() -> None:
            async with httpx.AsyncClient(base_url=running.url, timeout=180) as client:
                sources = [random.Random(seed) for seed in range(30)]
                await asyncio.gather(*(well_behaved(client, source, totals) for source in sources))

        asyncio.run(all_well())
        running.complete(prompt="scored", max_tokens=0, echo=True, logprobs=0)
        found = running.settled()
        assert totals.completion == found["vllm:generation_tokens_total"]
        firsts = found["vllm:time_to_first_token_seconds_count"]
        assert totals.completion - firsts == found["fsm_spec:emitted_tokens_total"]


def test_a_leaver_frees_its_pages_at_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Pages of a client that has gone must not wait for the end of its text; the log knows it from one that stayed."""
    caplog.set_level(logging.INFO, logs.LOGGER.name)
    with serve("ar", pages=250) as running:
        assert running.parts is not None
        assert isinstance(running.parts.engines, OneEngine)
        session = running.parts.engines.session
        iterate = session.iterate

        def slowly() -> dict[int, str]:
            # A tiny model would be done before anybody could leave.
            time.sleep(0.02)
            return iterate()

        session.iterate = slowly  # type: ignore[method-assign]
        body = {"prompt": "hello", "max_tokens": 900, "stream": True, **LONG}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_bytes())
        found = running.settled()
        running.complete(prompt="hello", n=2, max_tokens=3, **LONG)
        assert found["vllm:request_success_total/abort"] == 1
        assert found["vllm:generation_tokens_total"] < 900
    lines: list[dict[str, Any]] = [vars(each).get("fields", {}) for each in caplog.records]
    gone, stayed = [each for each in lines if each.get("path") == "/v1/completions"]
    assert ("abort", 200) == (gone["finish_reason"], gone["status"])
    assert 0 < gone["completion_tokens"] < 900
    assert ("length", 6, 0) == tuple(
        stayed[name] for name in ("finish_reason", "completion_tokens", "cached_tokens")
    )


def test_a_slow_reader_holds_up_nobody(serve: Serve) -> None:
    """One client reads nothing; others are served, its own text is finished, and it is let go in the end."""
    with serve("ar", stall=1.0) as running:
        host, port = running.url.removeprefix("http://").split(":")
        body = json.dumps(
            {"prompt": "hello", "max_tokens": 700, "n": 4, "logprobs": 20, "stream": True, **LONG}
        ).encode()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, int(port)))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            head += "Content-Type: application/json\r\n\r\n"
            slow.sendall(head.encode() + body)
            for _ in range(5):
                done = running.complete(prompt="quick", max_tokens=3, **LONG)
                assert 3 == done["usage"]["completion_tokens"]
            running.settled()


def test_queue_is_bounded_and_fair(serve: Serve) -> None:
    """A flood of one client gets 429 with Retry-After; another client's request is not behind all of it."""
    with serve("ar", keys=("flood", "guest"), max_running=1, max_queue=20, pages=250) as running:

        async def run() -> tuple[list[httpx.Response], list[str]]:
            order: list[str] = []

            async def ask(key: str, tokens: int) -> httpx.Response:
                body = {"prompt": "hello", "max_tokens": tokens, **LONG}
                headers = {"authorization": f"Bearer {key}"}
                response = await client.post("/v1/completions", json=body, headers=headers)
                if response.status_code == 200:
                    order.append(key)
                return response

            async with httpx.AsyncClient(base_url=running.url, timeout=180) as client:
                flood = [asyncio.create_task(ask("flood", 40)) for _ in range(40)]
                await asyncio.sleep(0.1)
                guest = asyncio.create_task(ask("guest", 5))
                return [*await asyncio.gather(*flood), await guest], order

        responses, order = asyncio.run(run())
        refused = [response for response in responses if response.status_code == 429]
        assert len(refused) >= 10
        assert all(1 <= int(response.headers["retry-after"]) <= 60 for response in refused)
        assert {response.json()["error"]["type"] for response in refused} == {"rate_limit_error"}
        # The queue was full of the flood when the guest came, unless it was refused as well.
        assert "guest" not in order[-5:]


def test_priorities_decide_who_waits(serve: Serve) -> None:
    """Of those that wait, a lower number goes first, whoever came before."""
    with serve("ar", max_running=1, pages=250) as running:
        order: list[int] = []

        async def run() -> None:
            async def ask(priority: int, tokens: int) -> None:
                body = {"prompt": "hello", "max_tokens": tokens, "priority": priority, **LONG}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
                order.append(priority)

            async with httpx.AsyncClient(base_url=running.url, timeout=180) as client:
                first = asyncio.create_task(ask(0, 400))
                await asyncio.sleep(0.1)
                await asyncio.gather(first, *(ask(priority, 3) for priority in (9, 8, 7, -5, -6, -7)))

        asyncio.run(run())
        # The engine has one in reserve beside the one that runs.
        late = [priority for priority in order[1:] if priority != 9]
        assert sorted(late) == late


def test_more_than_the_queue_holds_is_refused_for_good(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would never help, so that 429 would be a lie; and no job is made, as a few bytes ask for thousands."""
    monkeypatch.delattr(intake, "Job")
    with serve("ar", max_queue=4) as running:
        refused = running.post("/v1/completions", prompt="a", n=5)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_deadline(serve: Serve) -> None:
    """What takes longer than the limit ends with 504, and in a stream with an error in its place."""
    with serve("ar", timeout=0.3) as running:
        late = running.post("/v1/completions", prompt="hello", max_tokens=900, n=4, **LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
        events = running.stream("/v1/completions", prompt="hello", max_tokens=900, n=4, **LONG)
        assert events[-1]["error"]["code"] == "deadline"
        running.settled()
    with serve("ar") as running:
        late = running.post("/v1/completions", prompt="hello", max_tokens=900, n=4, timeout=0.2, **LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (408, "deadline")
        assert running.complete(prompt="hello", max_tokens=2, timeout=600, **LONG)["choices"]
        running.settled()


def test_preemption_changes_no_answer(serve: Serve) -> None:
    """A pool for two serves eight; whoever gave its pages back goes on with the same text."""
    body: dict[str, Any] = {"max_tokens": 60, "temperature": 0.9, **LONG}
    with serve("isd", pages=45, policy="preempt") as running:

        async def run() -> list[str]:
            async with httpx.AsyncClient(base_url=running.url, timeout=180) as client:
                asked = [
                    client.post("/v1/completions", json={**body, "prompt": f"hello {seed}", "seed": seed})
                    for seed in range(8)
                ]
                return [each.json()["choices"][0]["text"] for each in await asyncio.gather(*asked)]

        together = asyncio.run(run())
        assert running.metrics()["vllm:num_preemptions_total"] > 0
        alone = [
            running.complete(**body, prompt=f"hello {seed}", seed=seed)["choices"][0]["text"]
            for seed in range(8)
        ]
        assert alone == together
        running.settled()


def test_policy_switch_while_serving(serve: Serve) -> None:
    """Another policy takes over between two iterations; what cannot run is refused."""
    with serve("ar", pages=60) as running:
        switched: list[int] = []
        first = running.complete(prompt="hello", max_tokens=1, **LONG)["system_fingerprint"]

        def switch() -> None:
            mine = {"policy": "mine", "admit": "holdback", "max_running": 2}
            answers = [
                running.http.put("/v1/fsm/policy", json={"policy": policy})
                for policy in ("reserve", "preempt", mine)
            ]
            switched.extend(answer.status_code for answer in answers)

        thread = threading.Thread(target=switch)
        thread.start()
        for _ in range(6):
            running.complete(prompt="hello", n=4, max_tokens=20, **LONG)
        thread.join()
        assert switched == [200, 200, 200]
        assert running.http.get("/v1/fsm").json()["policy"]["policy"] == "mine"
        assert first != running.complete(prompt="hello", max_tokens=1, **LONG)["system_fingerprint"]
        assert running.http.put("/v1/fsm/policy", json={"policy": "holdback"}).status_code == 200
        assert first == running.complete(prompt="hello", max_tokens=1, **LONG)["system_fingerprint"]
        for wrong, said in {
            "greedy": "the policy greedy lets requests block each other",
            "/etc/passwd": "no policy is called '/etc/passwd'",
            '{"admit": "never"}': "policy.admit: should be 'reserve', 'holdback'",
            '{"admit": "greedy"}': "the policy greedy lets requests block each other",
            '{"max_running": 0}': "policy.max_running: should be greater than or equal to 1; got 0",
            '{"maxrunning": 1}': "parameter 'policy.maxrunning' is not supported; did you mean \"max_running\"?",
        }.items():
            given = json.loads(wrong) if wrong.startswith("{") else wrong
            refused = running.http.put("/v1/fsm/policy", json={"policy": given})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "policy")
            assert refused.json()["error"]["message"].startswith(said)
        running.settled()


def test_tier_policies_switch_while_serving(serve: Serve) -> None:
    """Block sizes follow the policy in force; sizes that the run was not made for are refused."""
    small: dict[str, Any] = {
        "policy": "small",
        "tier": {"param": "b", "steps": [{"to": 1, "value": 8}, {"value": 2}]},
    }
    body: dict[str, Any] = {"prompt": "hello hello", "max_tokens": 40, "temperature": 0, **LONG}
    with serve("linear_spec", pages=300, policy="tiers", params={"b": 4}) as running:

        def policy(wanted: object) -> int:
            return running.http.put("/v1/fsm/policy", json={"policy": wanted}).status_code

        first = running.complete(**body)["choices"]
        assert running.metrics()["fsm_spec:tier/b"] == 16
        assert policy(small) == 200
        assert running.complete(**body)["choices"] == first
        assert running.metrics()["fsm_spec:tier/b"] == 8
        assert policy("reserve") == 200
        assert running.complete(**body)["choices"] == first
        assert running.metrics()["fsm_spec:tier/b"] == 4
        assert policy({**small, "tier": {"param": "none", "steps": [{"value": 2}]}}) == 400
        assert policy("tiers") == 200
        running.settled()
    with serve("linear_spec", pages=300, params={"b": 4}) as running:
        refused = running.http.put("/v1/fsm/policy", json={"policy": "tiers"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "policy")
