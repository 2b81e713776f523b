"""Several replicas behind one front: routing by prefix, a lost replica, policies and metrics of all.

Here replicas are objects of this process (`crew.py`); `test_ray.py` has processes under Ray Serve.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import PAGES, Crew, crew, slow
from live_server import SERVING, Running

from fsm_spec.compile import compile_table
from fsm_spec.executor.server.command import Serving
from fsm_spec.executor.server.replica import Replica
from fsm_spec.executor.server.routing import IMBALANCE, PrefixRouter
from fsm_spec.load import load
from fsm_spec.policy import Pool

LONG: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Crew]:
    """Return two replicas that tests share; no page may be held at the end."""
    with crew(folder, params={"shortest": 1}) as found:
        yield found
        state = found.running.http.get("/v1/fsm/requests").json()
        assert not state["live"]
        assert 2 * PAGES == state["pages"]["cached"] + state["pages"]["free"]


def test_answers_are_those_of_one_engine(pair: Crew, server: Running) -> None:
    """Greedy, seeded, scored and grammar-bound answers do not depend on where they ran, streamed or whole."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "hello hello", "max_tokens": 20, "temperature": 0, **LONG},
        {"prompt": "hello", "max_tokens": 20, "seed": 3, "n": 3, **LONG},
        {"prompt": "hello", "max_tokens": 5, "temperature": 0, "logprobs": 2, "echo": True, **LONG},
        {
            "prompt": "hello",
            "max_tokens": 40,
            "seed": 1,
            "response_format": {"type": "regex", "pattern": "(ab|cd){3}"},
        },
    ]
    for body in bodies:
        one, two = server.complete(**body), pair.running.complete(**body)
        for mine, theirs in zip(one["choices"], two["choices"], strict=True):
            scores = [(each.pop("logprobs") or {}).get("token_logprobs", [])[1:] for each in (mine, theirs)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)
            assert mine == theirs
        assert one["usage"]["completion_tokens"] == two["usage"]["completion_tokens"]
    streamed = pair.running.stream("/v1/completions", **bodies[0])
    text = "".join(choice["text"] for event in streamed for choice in event["choices"])
    assert server.complete(**bodies[0])["choices"][0]["text"] == text


def test_a_prompt_goes_where_it_is_known(pair: Crew) -> None:
    """The same beginning is found again on the same replica; others go to the one that has less to do."""
    running = pair.running
    before = running.metrics()
    prompts = [letter * 60 for letter in "uvwxyz"]
    found = [running.complete(prompt=prompt, max_tokens=2, temperature=0) for prompt in prompts * 2]
    assert found[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 50
    after = running.metrics()

    def more(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    counted = "fsm_spec:replica_requests_total"
    by_prefix = [more(f"{counted}/prefix/front/{replica}") for replica in range(2)]
    by_load = [more(f"{counted}/load/front/{replica}") for replica in range(2)]
    assert (6, 6) == (sum(by_prefix), sum(by_load))
    assert min(by_load) >= 2, "an unknown prompt must not always go to the same replica"
    # Metrics of each replica carry its number, and add up.
    prompt_tokens = [more(f"vllm:prompt_tokens_total/{replica}") for replica in range(2)]
    assert sum(prompt_tokens) == 12 * 60
    assert min(prompt_tokens) > 0


def test_a_lost_replica_takes_only_its_own_requests_along(folder: Path) -> None:
    """Its streams end with an error event, whole answers with 503; the others finish, and it comes back."""
    with crew(folder, spec="ar") as found:
        running = found.running
        slow(found.links)
        begun = threading.Semaphore(0)
        streams: list[dict[str, Any]] = []
        whole: list[int] = []

        def stream(prompt: str) -> None:
            body = {"prompt": prompt, "max_tokens": 60, "stream": True, **LONG}
            with running.http.stream("POST", "/v1/completions", json=body) as response:
                lines = (line for line in response.iter_lines() if line)
                seen = [next(lines)]
                begun.release()
                seen += lines
            assert seen[-1] == "data: [DONE]"
            streams.append(json.loads(seen[-2].removeprefix("data: ")))

        def ask(prompt: str) -> None:
            body = {"prompt": prompt, "max_tokens": 60, **LONG}
            whole.append(running.http.post("/v1/completions", json=body).status_code)

        targets = [stream] * 4 + [ask] * 4
        threads = [
            threading.Thread(target=target, args=(str(number) * 40,)) for number, target in enumerate(targets)
        ]
        for thread in threads:
            thread.start()
        for _ in range(4):
            begun.acquire(timeout=60)
        while sum(each["running"] for each in found.replicas()) < 8:
            time.sleep(0.02)
        lost = found.replicas()[0]["running"]
        found.kill(0)
        for thread in threads:
            thread.join()
        errors = [event["error"]["code"] for event in streams if "error" in event]
        assert (4, 4) == (len(streams), len(whole))
        assert {"replica_lost"} == set(errors)
        assert lost == len(errors) + whole.count(503)
        assert {200, 503} == set(whole)
        assert lost < 8
        found.wait_all_up()
        assert [1, 0] == [each["losses"] for each in found.replicas()]
        assert running.metrics()["vllm:request_success_total/front/error"] == lost
        assert running.complete(prompt="back", max_tokens=2, temperature=0)["choices"]
        # Nothing is left of the lost requests.
        assert 0 == sum(each["running"] for each in found.replicas())


def test_a_policy_reaches_all_and_those_that_come_back(folder: Path) -> None:
    """A switch holds for every replica, also for one that starts later; a refusal changes nothing."""
    with crew(folder, spec="ar") as found:
        http = found.running.http
        refused = http.put("/v1/fsm/policy", json={"policy": "greedy"})
        assert (400, "policy") == (refused.status_code, refused.json()["error"]["param"])
        assert http.put("/v1/fsm/policy", json={"policy": "reserve"}).status_code == 200
        found.kill(1)
        while not found.replicas()[1]["losses"]:
            time.sleep(0.02)
        found.wait_all_up()
        state = http.get("/v1/fsm/requests").json()
        assert ["reserve", "reserve"] == [each["policy"] for each in state["replicas"]]
        assert http.get("/v1/fsm").json()["policy"]["policy"] == "reserve"


def test_leavers_and_limits_are_the_fronts(folder: Path) -> None:
    """Who leaves frees pages on its replica; what does not fit waits in front, in order, until its deadline."""
    with crew(folder, spec="ar", max_running=1) as found:
        running = found.running
        slow(found.links)
        body = {"prompt": "hello", "max_tokens": 400, "n": 4, "stream": True, **LONG}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            parts = response.iter_bytes()
            next(parts)
            state = running.http.get("/v1/fsm/requests").json()
            assert (2, 2) == (len(state["live"]), state["waiting"])
            assert {0, 1} == {each["replica"] for each in state["live"]}
            assert all([each["state"]] == each["path"] for each in state["live"])
        ended = running.settled_replicas(2 * PAGES)
        assert ended["vllm:request_success_total/front/abort"] >= 1
        assert ended["vllm:num_requests_waiting"] == 0


def test_router_prefers_prefix_until_load_says_no() -> None:
    """The longest known prefix wins, the least load among equals, and nobody waits long for a prefix."""
    router = PrefixRouter(compile_table(load("ar").spec), Pool(4, 4))
    text = list(range(40))
    router.note(1, text[:12])
    assert (1, 3) == router.choose(text, {0: 0, 1: 5})
    assert (0, 0) == router.choose(text, {0: 0, 1: IMBALANCE + 1})
    assert (0, 0) == router.choose(text[1:], {0: 2, 1: 3})
    router.note(1, [*range(100, 116)])  # the pool has four pages
    assert (0, 0) == router.choose(text, {0: 0, 1: 0})
    router.forget(1)
    assert (1, 0) == router.choose([*range(100, 116)], {0: 1, 1: 0})


def test_refusals_and_results_travel_whole(pair: Crew) -> None:
    """What a replica refuses arrives with its status and words, not as a fault of the way."""
    refused = pair.running.post("/v1/completions", prompt="a", max_tokens=5, top_p=3)
    assert (400, "top_p") == (refused.status_code, refused.json()["error"]["param"])
    done = pair.running.complete(prompt="hello", max_tokens=9, temperature=0, speculation_stats=True, **LONG)
    assert done["speculation"][0]["rounds"] > 0
    assert json.dumps(done)


def test_a_replica_has_one_listener_and_an_end(folder: Path) -> None:
    """Who listened before hears that it is over; a replica that was closed is none that has failed."""
    run = Serving(**{**SERVING, "spec": "ar", "model": str(folder), "pages": PAGES, "replicas": 2})
    asyncio.run(_listen_twice(Replica(run, {"names": ("tiny",)}, "proved")))


async def _listen_twice(replica: Replica) -> None:
    await replica.hello()
    first, second = replica.follow(replica.life), replica.follow(replica.life)
    assert [] == await anext(first)
    heard = asyncio.create_task(_rest(first))
    await asyncio.sleep(0)
    assert [] == await anext(second)
    async with asyncio.timeout(20):
        assert [[]] == await heard
    await replica.check_health()
    await replica.close()
    await replica.check_health()
    assert [[]] == await _rest(second)


async def _rest(batches: AsyncGenerator[list[Any]]) -> list[list[Any]]:
    return [batch async for batch in batches]
