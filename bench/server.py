"""Time the server against the engine alone, in the same process on the same requests, on SmolLM2.

Clients are a process of their own (`fsm-spec bench serve`), all of which send at once; the engine alone gets the same
prompts from a plain loop. Runs alternate, and the overhead is the median of the ratios of neighbours. Beside it stands
the server's time outside the engine's iterations while it served, in percent of the time inside: both belong to one
run, so that a machine that is busy otherwise disturbs their ratio less.
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
from fsm_spec.executor.server.app import Server
from fsm_spec.executor.server.engines import OneEngine
from fsm_spec.executor.server.metrics import LABELS
from fsm_spec.load import load
from fsm_spec.policy import Pool

SPECS = ("ar", "ngram")
CLIENTS = (1, 8, 32)
_PROMPT = 40  # characters


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
        with live(spec, model) as (url, parts):
            for clients in CLIENTS:
                tokens = given.tokens if clients < max(CLIENTS) else given.tokens // 2
                cases.append(_compare(model, spec, (url, parts), clients, tokens, given.repeats))
    digests = {spec: compile_table(load(spec).spec).digest for spec in SPECS}
    shared = {"model": "smollm2-135m", "dtype": "float32", "threads": given.threads, "repeats": given.repeats}
    write_result("server", {**shared, "digests": digests, "cases": cases})


def _compare(
    model: LoadedModel, spec: str, at: tuple[str, Server], clients: int, tokens: int, repeats: int
) -> dict[str, Any]:
    """Alternate engine and server, after one run of each that is not counted."""
    # Short prompts: what is measured is serving, not prefill.
    texts = [f"{index}. {MIXED[index % len(MIXED)][:_PROMPT]}" for index in range(clients)]
    runs = [(_engine(model, spec, texts, tokens), _server(at, texts, tokens)) for _ in range(repeats + 1)][1:]
    overhead = median(100 * (served["seconds"] / alone - 1) for alone, served in runs)
    outside = median(100 * (served["seconds"] / served["engine_seconds"] - 1) for _, served in runs)
    emitted = clients * tokens
    case = {
        "spec": spec,
        "clients": clients,
        "tokens": emitted,
        "server_tok_s": emitted / median(served["seconds"] for _, served in runs),
        "engine_tok_s": emitted / median(alone for alone, _ in runs),
        "overhead_percent": overhead,
        "outside_engine_percent": outside,
        "runs": [{"engine": alone, "server": served} for alone, served in runs],
        "ttft_p50_ms": median(served["ttft"] for _, served in runs),
        "acceptance_length": runs[-1][1]["acceptance_length"],
    }
    print(
        f"{spec:6} {clients:3} clients: server {case['server_tok_s']:6.1f} tok/s, engine {case['engine_tok_s']:6.1f}, "
        f"overhead {overhead:5.1f} %, outside the engine {outside:5.1f} %",
        flush=True,
    )
    return case


def _engine(model: LoadedModel, spec: str, texts: list[str], tokens: int) -> float:
    """Run all requests on a session alone -> seconds; text is decoded there too."""
    session = Session(compile_table(load(spec).spec), model.transformer, model.tokenizer, pool=Pool(4096, 16))
    prompts = [model.tokenizer.encode(text) for text in texts]
    started = time.perf_counter()
    for prompt in prompts:
        session.add(prompt, Options(tokens, stop_ids=()))
    session.run()
    return time.perf_counter() - started


def _server(at: tuple[str, Server], texts: list[str], tokens: int) -> dict[str, Any]:
    """Send all requests at once from another process -> seconds, those inside the engine, and latencies."""
    url, parts = at
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
        before = _engine_seconds(parts)
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        inside = _engine_seconds(parts) - before
    assert len(texts) * tokens == found["emitted_tokens"]
    return {
        "seconds": found["duration_s"],
        "engine_seconds": inside,
        "ttft": found["ttft_ms"]["p50"],
        "acceptance_length": found["acceptance_length"],
    }


def _engine_seconds(parts: Server) -> float:
    """Read the server's own count of the time in iterations."""
    assert isinstance(parts.engines, OneEngine)
    observer = parts.engines.observer
    labels = dict(zip(LABELS, observer.who, strict=True))
    return observer.registry.get_sample_value("fsm_spec:engine_seconds_total", labels) or 0.0


if __name__ == "__main__":
    main()
