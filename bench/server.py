"""Time the server against the engine alone, in the same process on the same requests, on SmolLM2.

Clients are a process of their own (`fsm-spec bench serve`), all of which send at once; the engine alone gets the same
prompts from a plain loop. Runs alternate, and each overhead is the median of the ratios of neighbours: of wall-clock
time, and of the CPU time of this process, which a machine that is busy otherwise disturbs less.
Run: `scripts/bench server`; `python bench/server.py --repeats 1 --tokens 16` is a short trial.
Writes bench/results/server.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from live import live
from prompts import MIXED
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.load import load
from fsm_spec.policy import Pool

SPECS = ("ar", "ngram")
CLIENTS = (1, 8, 32)


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokens", type=int, default=64, help="tokens of an answer; half of them for 32 clients"
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs; medians are given")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; the clients need a core")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model("smollm2-135m", torch.float32)
    cases = []
    for spec in SPECS:
        with live(spec, model) as (url, _):
            for clients in CLIENTS:
                tokens = given.tokens if clients < max(CLIENTS) else given.tokens // 2
                cases.append(_compare(model, spec, url, clients, tokens, given.repeats))
    digests = {spec: compile_table(load(spec).spec).digest for spec in SPECS}
    shared = {"model": "smollm2-135m", "dtype": "float32", "threads": given.threads, "repeats": given.repeats}
    write_result("server", {**shared, "digests": digests, "cases": cases})


def _compare(
    model: LoadedModel, spec: str, url: str, clients: int, tokens: int, repeats: int
) -> dict[str, Any]:
    """Alternate engine and server, after one run of each that is not counted."""
    texts = [f"{MIXED[index % len(MIXED)]} ({index})" for index in range(clients)]
    runs = [(_engine(model, spec, texts, tokens), _server(url, texts, tokens)) for _ in range(repeats + 1)][
        1:
    ]
    overhead = {
        name: median(100 * (served[name] / alone[name] - 1) for alone, served in runs)
        for name in ("seconds", "cpu_seconds")
    }
    emitted = clients * tokens
    case = {
        "spec": spec,
        "clients": clients,
        "tokens": emitted,
        "server_tok_s": emitted / median(served["seconds"] for _, served in runs),
        "engine_tok_s": emitted / median(alone["seconds"] for alone, _ in runs),
        "overhead_percent": overhead["seconds"],
        "cpu_overhead_percent": overhead["cpu_seconds"],
        "runs": [{"engine": alone, "server": served} for alone, served in runs],
        "ttft_p50_ms": median(served["ttft"] for _, served in runs),
        "acceptance_length": runs[-1][1]["acceptance_length"],
    }
    print(
        f"{spec:6} {clients:3} clients: server {case['server_tok_s']:6.1f} tok/s, engine {case['engine_tok_s']:6.1f}, "
        f"overhead {case['overhead_percent']:5.1f} %, of CPU time {case['cpu_overhead_percent']:5.1f} %",
        flush=True,
    )
    return case


def _engine(model: LoadedModel, spec: str, texts: list[str], tokens: int) -> dict[str, float]:
    """Run all requests on a session alone -> seconds by the clock and of the CPU; text is decoded there too."""
    session = Session(compile_table(load(spec).spec), model.transformer, model.tokenizer, pool=Pool(4096, 16))
    prompts = [model.tokenizer.encode(text) for text in texts]
    started, cpu = time.perf_counter(), time.process_time()
    for prompt in prompts:
        session.add(prompt, Options(tokens, stop_ids=()))
    session.run()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


def _server(url: str, texts: list[str], tokens: int) -> dict[str, Any]:
    """Send all requests at once from another process -> seconds and latencies."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        command = [
            sys.executable,
            "-c",
            "from fsm_spec.cli import main; main()",
            "bench",
            "serve",
            "--url",
            url,
        ]
        command += ["--dataset", str(path), "--output", str(tokens), "--json"]
        command += ["--arrivals", f"closed:{len(texts)}", "--requests", str(len(texts))]
        cpu = time.process_time()
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        cpu = time.process_time() - cpu
    assert len(texts) * tokens == found["emitted_tokens"]
    return {
        "seconds": found["duration_s"],
        "cpu_seconds": cpu,
        "ttft": found["ttft_ms"]["p50"],
        "acceptance_length": found["acceptance_length"],
    }


if __name__ == "__main__":
    main()
