"""Time whole rounds on a GPU: a random model of Llama-3.1-8B's shape, with as many drafts accepted as chances say.

Run: `scripts/gpu_check`, or `python bench/gpu_rounds.py --seconds 100`. Without a GPU, `--device cpu --tiny` goes the
same way with a tiny model, tapes in place of graphs and a clock in place of events, and writes nothing.

Weights are drawn on the device. Prompts are prefilled through the first layer alone: what lies in the other layers'
KV costs no more time to read than a text would. Each case is run without graphs, with them, and with them under a
host that plans a round ahead. The time of a round is that of one iteration of the engine, all of the host's work in
it; the device's share is what events around its launches say, and the host's gap is the rest. The sum of floors is
that of `round_floors.py`. Goals: a gap below 20 us, and a round of `isd` with 4 tokens within 10 % of a step of `ar`,
at batch 1. Writes bench/results/gpu_rounds.json.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from gpu_timing import copy_gb_s, product_tflop_s, why_not
from record import write_result
from rich.console import Console
from rich.table import Table as Screen
from round_floors import Ceilings, Floors
from round_watch import EventWatch, HostWatch, Span, TimedGraphs, Watch

from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
from fsm_spec.executor.device.place import find_place
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.generate import Options, Session, pool_for
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.synthetic import synthetic_of
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool, Prefill
from fsm_spec.table import Table

# What the goals are about comes first, in all modes and sizes; of other specs the fastest mode alone.
FIRST = ("ar", "isd", "ngram")
MODES = ("eager", "graph", "overlapped")
ACCEPTANCE = "geometric:0.7"
WARM, EAGER, ROUNDS = 4, 6, 30
PAGE = 16
GOALS = {"gap_us": 20.0, "isd_over_ar": 1.1}
LLAMA = ModelConfig(
    hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128_256, context=8192,
    rope_theta=500_000.0, mask_token_id=128_255,
)  # fmt: skip
TINY = replace(tiny_config(layers=3, vocab=512), context=1024)


@dataclass(frozen=True)
class Bench:
    """Hold what all cases share."""

    model: Transformer
    device: str
    context: int
    ceilings: Ceilings
    rounds: int

    @property
    def watch(self) -> Watch:
        """Give a clock of the device."""
        return HostWatch() if self.device == "cpu" else EventWatch()

    @property
    def drawn(self) -> torch.dtype:
        """Give the format that weights are drawn in."""
        return self.model.dtype

    def session(self, table: Table, batch: int, lag: int) -> Session:
        """Open a session of so many requests, whose rounds run eagerly until graphs are turned on."""
        place = find_place(self.device)
        place.graphs = False
        policy = Policy(max_running=batch, lag=lag, prefill=Prefill(tokens=8 * self.context))
        drafts, masks = (ACCEPTANCE if most_drafts(table, op) else None for op in ("accept", "unmask"))
        limit = min(self.model.config.context - self.context, 16 * (self.rounds + WARM + EAGER))
        pages = batch * pool_for(table, self.context, limit, PAGE, policy).pages
        with torch.device(self.device):
            drafters = random_drafters(table, self.model, dtype=self.drawn)
        session = Session(
            table,
            self.model,
            pool=Pool(pages, PAGE),
            policy=policy,
            drafters=drafters,
            resident=Resident(place),
            synthetic=synthetic_of(drafts, masks, table),
        )
        source = random.Random(1)
        # A phrase that comes again and again: lookups find it.
        phrase = [source.randrange(3, self.model.config.vocab - 1) for _ in range(self.context // 4)]
        for number in range(batch):
            prompt = (phrase[number:] + phrase * 4)[: self.context]
            session.add(prompt, Options(limit, seed=number, stop_ids=()))
        return session


def case(bench: Bench, spec: str, batch: int, modes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row a mode: plain modes share a session, and so a prefill."""
    table = compile_table(load(spec).spec)
    for lag, own in ((0, ("eager", "graph")), (1, ("overlapped",))):
        wanted = [mode for mode in own if mode in modes]
        if not wanted:
            continue
        session = bench.session(table, batch, lag)
        try:
            _prefill(session, batch)
            for mode in wanted:
                yield {"spec": spec, "digest": table.digest, "batch": batch, "mode": mode} | _timed(
                    bench, session, mode
                )
        finally:
            del session
            gc.collect()
            if bench.device != "cpu":
                torch.cuda.empty_cache()


def _prefill(session: Session, batch: int) -> None:
    """Prefill all prompts through the first layer alone, until every request is in its rounds."""
    engine = session.engine
    with _shallow(_runner(session).machine.weights.model):
        for _ in range(1000):
            session.iterate()
            if len(engine.live) == batch and (engine.columns["emitted"][engine.live] > 0).all():
                return
    raise RuntimeError("prompts are not prefilled after 1000 iterations")


@contextmanager
def _shallow(model: Transformer) -> Iterator[None]:
    """Leave a model its first layer for a while."""
    layers = model.layers
    model.layers = layers[:1]
    try:
        yield
    finally:
        model.layers = layers


def _timed(bench: Bench, session: Session, mode: str) -> dict[str, Any]:
    """Time rounds under new graphs, or under none; rounds in which something was captured count for nothing."""
    runner, watch = _runner(session), bench.watch
    runner.machine.place.graphs = mode != "eager"
    graphs = runner.graphs = runner.device.graphs = TimedGraphs(runner.graphs, watch)
    engine, batch = session.engine, len(session.engine.live)
    walls: list[float] = []
    spans: list[list[Span]] = []
    emitted: list[int] = []
    wanted = WARM + (EAGER if mode == "eager" else bench.rounds)
    while len(walls) < wanted:
        before, captured = _emitted(session), graphs.captured
        graphs.spans.clear()
        started = time.perf_counter()
        session.iterate()
        took = (time.perf_counter() - started) * 1e6
        if len(engine.live) < batch:
            break
        if graphs.captured == captured:
            walls.append(took)
            spans.append(list(graphs.spans))
            emitted.append(_emitted(session) - before)
    watch.wait()
    walls, spans, emitted = walls[WARM:], spans[WARM:], emitted[WARM:]
    if not walls:
        raise RuntimeError("requests ended before a round was timed; give them more room")
    floors = Floors(runner.machine, bench.ceilings, batch, float(engine.columns["kv"][engine.live].mean()))
    known = {work: floors.of(work) for each in spans for work, *_ in each}
    device = median(sum(watch.us(start, end) for _, start, end in each) for each in spans)
    least = median(sum(known[work] for work, *_ in each) for each in spans)
    wall = median(walls)
    return {
        "context": round(floors.context),
        "rounds": len(walls),
        "launches": median(len(each) for each in spans),
        "round_us": round(wall, 1),
        "device_us": round(device, 1),
        "gap_us": round(wall - device, 1),
        "floor_us": round(least, 1),
        "of_floor": round(least / wall, 3),
        "tokens_s": round(sum(emitted) / sum(walls) * 1e6, 1),
        "tokens_a_round": round(sum(emitted) / len(walls) / batch, 2),
    }


def _emitted(session: Session) -> int:
    engine = session.engine
    return int(engine.columns["emitted"][engine.live].sum())


def _runner(session: Session) -> DeviceRunner:
    assert isinstance(session.runner, DeviceRunner), "the session is resident"
    return session.runner


def judged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hold rows to the goals: the largest gap with planning ahead, and a round of drafts against a plain step."""
    ahead = {(row["spec"], row["batch"]): row for row in rows if row["mode"] == "overlapped"}
    plain, drafted = (ahead.get((spec, 1)) for spec in ("ar", "isd"))
    found: dict[str, Any] = {"goals": GOALS}
    if ahead:
        found["gap_us"] = max(row["gap_us"] for row in ahead.values())
    if plain and drafted:
        found["isd_over_ar"] = round(drafted["round_us"] / plain["round_us"], 3)
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print one line a row."""
    names = ("spec", "batch", "mode", "round_us", "device_us", "gap_us", "floor_us", "of_floor", "tokens_s",
             "tokens_a_round")  # fmt: skip
    screen = Screen(*(name.replace("_", " ") for name in names))
    for row in rows:
        screen.add_row(*(str(row[name]) for name in names))
    Console(width=140).print(screen)


def plan(specs: Sequence[str], batches: Sequence[int]) -> list[tuple[str, int, tuple[str, ...]]]:
    """List cases in the order of their worth: (spec, batch, modes)."""
    first = [(spec, batch, MODES) for spec in FIRST if spec in specs for batch in batches]
    others = [(spec, batch, MODES[-1:]) for batch in batches for spec in specs if spec not in FIRST]
    return [*first, *others]


def run(
    bench: Bench,
    specs: Sequence[str],
    batches: Sequence[int],
    until: float,
    keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Measure case after case up to a time of `perf_counter`; what fails or is left out is named.

    `keep` is handed what there is after each case, so that a run that is broken off has left something.
    """
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    left_out: list[str] = []
    for spec, batch, modes in plan(specs, batches):
        name = f"{spec} x {batch}"
        if time.perf_counter() > until:
            left_out.append(name)
            continue
        started = time.perf_counter()
        try:
            rows += case(bench, spec, batch, modes)
        except Exception as error:  # noqa: BLE001 -- whatever ends one case is no reason to stop the others
            failed[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        print(f"{name}: {time.perf_counter() - started:.1f} s{f', {failed[name]}' if name in failed else ''}")
        keep(_found(rows, failed, left_out))
    return _found(rows, failed, left_out)


def _found(rows: list[dict[str, Any]], failed: dict[str, str], left_out: list[str]) -> dict[str, Any]:
    return {"acceptance": ACCEPTANCE, **judged(rows), "rows": rows, "failed": failed, "left_out": left_out}


def prepare(device: str, *, tiny: bool, context: int, rounds: int) -> Bench:
    """Draw the model on the device, and measure what the device can do."""
    dtype = torch.bfloat16
    config = TINY if tiny else LLAMA
    with torch.device(device):
        model = Transformer(config, random_weights(config, 1, dtype), dtype)
    # Of a CPU nothing is measured: round numbers, so that floors are computed as anywhere.
    ceilings = Ceilings(10.0, 0.1) if device == "cpu" else Ceilings(copy_gb_s(), product_tflop_s())
    return Bench(model, device, context, ceilings, rounds)


def main() -> int:
    """Measure until the time is used; return the exit code."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=100.0, help="start no case after so many seconds")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the way on a CPU")
    parser.add_argument("--specs", nargs="+", default=[*FIRST, *sorted(set(shipped()) - set(FIRST))])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=None, help="tokens of a prompt; 1024, tiny 64")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds timed with graphs")
    given = parser.parse_args()
    lacking = why_not()
    if given.device == "cuda" and lacking is not None:
        print(f"{lacking}: nothing is measured; --device cpu --tiny tries the way")
        return 0
    context = given.context or (64 if given.tiny else 1024)
    bench = prepare(given.device, tiny=given.tiny, context=context, rounds=given.rounds)
    print(f"model ready after {time.perf_counter() - started:.1f} s")
    keep = (lambda _: None) if given.device == "cpu" else partial(_write, bench)
    found = run(bench, given.specs, given.batches, started + given.seconds, keep)
    show(found["rows"])
    for name in ("gap_us", "isd_over_ar"):
        print(f"{name}: {found.get(name, 'not measured')}, goal {GOALS[name]}")
    if found["left_out"]:
        print(f"left out after {given.seconds:.0f} s: {', '.join(found['left_out'])}")
    if given.device == "cpu":
        print("a dry run: nothing is written")
    else:
        _write(bench, found)
    return 1 if found["failed"] else 0


def _write(bench: Bench, found: dict[str, Any]) -> None:
    """Write what was measured, with the machine's ceilings."""
    shape = {"model": "Llama-3.1-8B's shape, random", "dtype": "bfloat16", "adapter": None, "draft_layers": 1}
    ceilings = {name: round(value, 1) for name, value in vars(bench.ceilings).items()}
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    write_result("gpu_rounds", {**about, **ceilings, **shape, **found})


if __name__ == "__main__":
    sys.exit(main())
