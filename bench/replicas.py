"""Two replicas of SmolLM2 under Ray Serve: what routing by prefix finds, and what a killed replica costs.

Groups of requests begin alike, group by group in turn, as the turns of several chats do; then a replica is killed
while all stream; then SIGTERM comes while one streams. Throughput is not measured: two cores are too few for it.
Run: `scripts/bench replicas`, with the layer `[ray]` installed. Writes bench/results/replicas.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from record import write_result

TEXTS = (
    "The lighthouse keeper wrote down the weather of every day of that long winter. ",
    "A table of contents lists the chapters of a book with the pages they begin on. ",
    "Rivers carry sand and clay from the mountains to the sea and build deltas there. ",
    "The baker mixes flour, water, salt and yeast, and waits until the dough has risen. ",
)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", default="ngram", help="spec to serve")
    parser.add_argument("--model", default="smollm2-135m", help="model to serve")
    parser.add_argument("--turns", type=int, default=5, help="requests of each group")
    given = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("skipped: Ray is not installed; install the layer [ray]")
        return
    begun = time.perf_counter()
    command = [sys.executable, "-c", "from fsm_spec.cli import main; main()", "serve", given.spec]
    command += [
        "--model",
        given.model,
        "--replicas",
        "2",
        "--port",
        "8791",
        "--pages",
        "600",
        "--drain",
        "300",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            with httpx.Client(base_url="http://127.0.0.1:8791", timeout=600) as http:
                _wait(http, server)
                result: dict[str, Any] = {"start_s": round(time.perf_counter() - begun, 1)}
                result["routing"] = _routing(http, given.turns)
                result["killed"] = _killed(http)
                result["drained"] = _drained(http, server)
        finally:
            if server.poll() is None:
                server.terminate()
    print(json.dumps(result, indent=1))
    write_result("replicas", {"spec": given.spec, "model": given.model, "replicas": 2, **result})


def _wait(http: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            if http.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise SystemExit("the server ended")


def _routing(http: httpx.Client, turns: int) -> dict[str, Any]:
    """Ask group by group in turn, each prompt longer than the one before, and count what was found."""
    prompts = [text * 6 for text in TEXTS]
    usages: list[dict[str, Any]] = []
    for _ in range(turns):
        for index, prompt in enumerate(prompts):
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            answer = http.post("/v1/completions", json=body).json()
            usages.append(answer["usage"])
            prompts[index] = prompt + answer["choices"][0]["text"] + TEXTS[index]
    sent: Counter[str] = Counter()
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "fsm_spec:replica_requests_total":
                sent[f"replica {sample.labels['replica']} by {sample.labels['by']}"] += int(sample.value)
    return {
        "groups": len(prompts),
        "turns": turns,
        "requests": dict(sorted(sent.items())),
        "prompt_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "cached_tokens": sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        "later_turns_that_found": sum(
            usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in usages[len(prompts) :]
        ),
    }


def _killed(http: httpx.Client) -> dict[str, Any]:
    """Kill a replica while eight streams run: how they end, and when it is back."""
    ends: Counter[str] = Counter()
    begun = threading.Semaphore(0)

    def stream(number: int) -> None:
        body = {
            "prompt": f"{number} {TEXTS[number % 4]}",
            "max_tokens": 120,
            "stream": True,
            "ignore_eos": True,
        }
        with http.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            seen = [next(lines)]
            begun.release()
            seen += lines
        last = json.loads(seen[-2].removeprefix("data: "))
        ends[last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"]] += 1

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire(timeout=300)
    before = _replicas(http)
    at = time.perf_counter()
    os.kill(before[0]["process"], signal.SIGKILL)
    while not _replicas(http)[0]["losses"]:
        time.sleep(0.02)
    noticed = time.perf_counter() - at
    while not _replicas(http)[0]["up"]:
        time.sleep(0.1)
    back = time.perf_counter() - at
    for thread in threads:
        thread.join()
    return {
        "running_there": before[0]["running"],
        "streams_by_end": dict(ends),
        "noticed_s": round(noticed, 2),
        "back_s": round(back, 1),
    }


def _drained(http: httpx.Client, server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Send SIGTERM while one streams."""
    body = {"prompt": TEXTS[0], "max_tokens": 60, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.terminate()
        rest = list(lines)
    at = time.perf_counter()
    code = server.wait(120)
    return {
        "stream_whole": rest[-1] == "data: [DONE]" and "error" not in rest[-2],
        "exit_code": code,
        "ended_s": round(time.perf_counter() - at, 1),
    }


def _replicas(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/fsm").json()["replicas"]
    return found


if __name__ == "__main__":
    main()
