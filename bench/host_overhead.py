"""Time the engine's own part of a round: scheduler, step, pool, row plans, stop checks, streaming of text.

A model that gives ready logits at once takes the place of the real one; its forward and the operators over logits
are timed apart and taken off. Goals: 300 us a round at 8 requests, 1 ms at 64. The floor beside it is a loop over
the same requests that appends one token to a list and decodes it, what any engine in Python pays for streaming.
Run: `scripts/bench host_overhead`. Writes bench/results/host_overhead.json.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.load import load_model
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.table import Table

MODEL = "smollm2-135m"
PROMPT, ROUNDS, WARM = 64, 200, 20


class ReadyModel:
    """Give logits that are there already, and count the time it takes to."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 -- a transformer
        self.config, self.dtype = model.config, model.dtype
        drawn = torch.randn(4096, 1, generator=torch.Generator().manual_seed(1))
        # One row a place, all views of one small block: rows differ, and nothing of a vocabulary's size is written.
        self.rows = drawn.expand(-1, 8) * torch.arange(8)
        self.logits = torch.zeros(4096, self.config.vocab)
        self.logits[:, 100:108] = self.rows + 5
        self.seconds = 0.0

    def forward(self, rows: RowBatch, cache: Any) -> torch.Tensor:  # noqa: ANN401, ARG002 -- the protocol's
        """Give logits for the rows that are wanted."""
        started = time.perf_counter()
        logits = self.logits[: len(rows.logits_rows)]
        self.seconds += time.perf_counter() - started
        return logits


def measure(table: Table, tokenizer: Tokenizer, model: Any, requests: int) -> dict[str, Any]:  # noqa: ANN401 -- a transformer
    """Give the microseconds of rounds of so many requests, and of their parts."""
    ready = ReadyModel(model)
    session = Session(table, ready, tokenizer, pool=Pool(144 * requests, 16))  # type: ignore[arg-type]
    spent = _timed_operators(session)
    for number in range(requests):
        session.add([100 + number % 50] * PROMPT, Options(2_000, stop_ids=(1,), stop=("never said",)))
    for _ in range(WARM):
        session.iterate()
    whole: list[float] = []
    own: list[float] = []
    while session.has_work and len(own) < ROUNDS:
        before, started = ready.seconds + spent[0], time.perf_counter()
        session.iterate()
        taken = time.perf_counter() - started
        whole.append(taken)
        own.append(taken - (ready.seconds + spent[0] - before))
    return {
        "spec": table.name, "digest": table.digest, "requests": requests,
        "engine_us": round(median(own) * 1e6, 1), "least_us": round(min(own) * 1e6, 1),
        "with_operators_us": round(median(whole) * 1e6, 1), "floor_us": round(_floor(tokenizer, requests), 1),
    }  # fmt: skip


def _timed_operators(session: Session) -> list[float]:
    """Count the seconds that operators over logits take."""
    spent = [0.0]
    assert isinstance(session.runner, Runner)
    run = session.runner.operators.run

    def timed(*args: Any, **more: Any) -> Any:  # noqa: ANN401 -- what the operators take
        started = time.perf_counter()
        found = run(*args, **more)
        spent[0] += time.perf_counter() - started
        return found

    session.runner.operators.run = timed  # type: ignore[method-assign]
    return spent


def _floor(tokenizer: Tokenizer, requests: int) -> float:
    """Give the microseconds of the least that a round of one token a request costs in Python."""
    streams, texts = [tokenizer.stream() for _ in range(requests)], [[0] * PROMPT for _ in range(requests)]
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for stream, text in zip(streams, texts, strict=True):
            text.append(104)
            stream.push([104])
        times.append(time.perf_counter() - started)
    return median(times) * 1e6


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--specs", nargs="*", default=["ar", "ngram", "isd"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(MODEL, torch.float32)
    rows = []
    for spec in given.specs:
        for requests in (1, 8, 64):
            row = measure(compile_table(load(spec).spec), model.tokenizer, model.transformer, requests)
            rows.append(row)
            print(
                f"{spec:12} {requests:3} requests: engine {row['engine_us']:7.0f} us a round (least "
                f"{row['least_us']:.0f}), floor {row['floor_us']:.0f} us"
            )
    write_result(
        "host_overhead", {"model": MODEL, "rounds": ROUNDS, "goals_us": {"8": 300, "64": 1000}, "rows": rows}
    )


if __name__ == "__main__":
    main()
