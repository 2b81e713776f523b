"""Workloads: the requests of a run, from arrivals, lengths and sessions, or from a trace file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator import draws
from fsm_spec.simulator.arrivals import ON_FINISH, Arrivals, number, parse_arrivals
from fsm_spec.simulator.lengths import MOST_TOKENS, Lengths, parse_lengths
from fsm_spec.simulator.prefixes import Prefixes
from fsm_spec.simulator.trace_file import TraceColumns, read_trace

__all__ = [
    "ON_FINISH",
    "Arrivals",
    "Lengths",
    "Request",
    "Requests",
    "Sessions",
    "Workload",
    "parse_arrivals",
    "parse_lengths",
    "parse_sessions",
]

SHARED_FORM = "GROUPS:TOKENS, such as 8:1024"
TURNS_FORM = "TURNS:THINK, such as 4:10"
# Of one run: 24 bytes of columns each, so that they stay below a gigabyte.
MOST_REQUESTS = 10_000_000

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Sessions:
    """Say what requests have in common: the first `shared` tokens, of one of `groups` texts, and turns of a talk.

    Each session has `turns` requests; the next one arrives `think_s` seconds (exponential mean) after the one before
    it, and repeats all text before it. `groups` of 0 and `turns` of 1: nothing in common.
    """

    groups: int = 0
    shared: int = 0
    turns: int = 1
    think_s: float = 0.0


class Request(NamedTuple):
    """One request; `arrival_ns` is ON_FINISH where it starts when another one finishes."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Requests:
    """Hold all requests of a run as columns, in order of arrival.

    `arrival_ns`, `prompt_tokens` and `output_tokens` are int64 [requests].
    In a closed loop the first `concurrency` requests arrive at 0, the others are ON_FINISH: the next of them
    starts whenever one finishes. `concurrency` is 0 for open loops. `prefixes` says whose text the prompts are.
    """

    arrival_ns: Integers
    prompt_tokens: Integers
    output_tokens: Integers
    concurrency: int = 0
    prefixes: Prefixes | None = None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in order of arrival."""
        for row in zip(
            self.arrival_ns.tolist(), self.prompt_tokens.tolist(), self.output_tokens.tolist(), strict=True
        ):
            yield Request(*row)


@dataclass(frozen=True)
class Workload:
    """Describe the requests of a run; the same seed gives the same requests."""

    arrivals: Arrivals
    prompt: Lengths | None = None
    output: Lengths | None = None
    requests: int | None = None
    seed: int = 0
    sessions: Sessions | None = None

    def __post_init__(self) -> None:
        """Refuse missing, impossible or ineffective options."""
        if self.requests is not None and self.requests < 1:
            raise UserError(f"--requests {self.requests} simulates nothing; give at least 1")
        if self.requests is not None and self.requests > MOST_REQUESTS:
            raise UserError(
                f"--requests {self.requests} is more than a run holds; give at most {MOST_REQUESTS:,}"
            )
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative; give 0 or more")
        lengths = {"--input": self.prompt, "--output": self.output}
        if self.arrivals.kind == "trace":
            given = [name for name, value in lengths.items() if value is not None]
            if given:
                raise UserError(
                    f"{' and '.join(given)} would have no effect, because a trace has its own"
                    f" lengths; leave out"
                )
            if self.sessions is not None:
                raise UserError("--turns and --shared-prefix would change what a trace holds; leave them out")
            return
        missing = [name for name, value in lengths.items() if value is None]
        missing += ["--requests"] if self.requests is None else []
        if missing:
            raise UserError(
                f"{self.arrivals.describe()} arrivals need {' and '.join(missing)}; give, for"
                f" example, {missing[0]} 512"
            )
        if self.sessions is not None and self.sessions.turns > 1 and self.arrivals.kind == "closed":
            raise UserError(
                "--turns says when the next turn arrives, and in a closed loop finishes say it; take poisson:RATE"
            )

    def generate(self) -> Requests:
        """Return the requests; times, prompts and outputs are drawn from streams of their own.

        Raises UserError for a trace file that is missing, broken (with the line) or shorter than was asked.
        """
        if self.arrivals.path is not None:
            return self._from_trace(self.arrivals.path)
        if self.requests is None or self.prompt is None or self.output is None:
            raise UserError("a workload without a trace needs --requests, --input and --output")
        times, prompts, outputs, others = (
            np.random.default_rng(part) for part in np.random.SeedSequence(self.seed).spawn(4)
        )
        count = self.requests
        inputs, results = self.prompt.draw(count, prompts), self.output.draw(count, outputs)
        sessions = self.sessions or Sessions()
        talks = -(-count // sessions.turns)
        starts = self.arrivals.times_ns(talks, times)
        if self.sessions is None:
            return Requests(starts, inputs, results, min(self.arrivals.concurrency, count))
        return _in_sessions(sessions, starts, inputs, results, others, self.arrivals.concurrency)

    def _from_trace(self, path: Path) -> Requests:
        """Return the first requests of a trace, thinned out and replayed as fast as was asked."""
        whole = read_trace(path, MOST_TOKENS, requests=self.requests, seed=self.seed)
        columns = self._sampled(path, whole)
        count = len(columns) if self.requests is None else self.requests
        if count > len(columns):
            raise UserError(
                f"{path}: holds {len(columns)} requests, fewer than --requests {count}; ask for fewer"
            )
        if count < len(columns):
            columns = columns.take(np.arange(count))
        arrival = np.rint(columns.arrival_ns / self.arrivals.speed).astype(np.int64)
        return Requests(arrival, columns.prompt, columns.output, 0, _prefixes_of(columns))

    def _sampled(self, path: Path, columns: TraceColumns) -> TraceColumns:
        """Keep each request with the same chance; a hash of seed and place decides."""
        if self.arrivals.sample == 1:
            return columns
        kept = draws.uniform(self.seed, np.arange(len(columns)), 0, draws.SAMPLE) < self.arrivals.sample
        if not kept.any():
            raise UserError(f"{path}: sample={self.arrivals.sample:g} keeps no request; take a larger share")
        return columns.take(np.flatnonzero(kept).astype(np.int64))


def _prefixes_of(columns: TraceColumns) -> Prefixes | None:
    """Say what the requests of a trace have in common, where the trace knows it."""
    if columns.block_tokens:
        return Prefixes(
            columns.session,
            np.full(len(columns), -1, np.int64),
            blocks=columns.blocks,
            block_start=columns.block_start,
            block_tokens=columns.block_tokens,
        )
    if (columns.session >= 0).any():
        return Prefixes(columns.session, np.full(len(columns), -1, np.int64))
    return None


def _in_sessions(
    sessions: Sessions,
    starts: Integers,
    inputs: Integers,
    results: Integers,
    generator: np.random.Generator,
    concurrency: int,
) -> Requests:
    """Lay requests out in sessions: each turn repeats the text before it; sorted by time, ties by session."""
    count, turns = len(inputs), sessions.turns
    talk, turn = np.divmod(np.arange(count), turns)
    groups = generator.integers(0, max(1, sessions.groups), len(starts))
    arrival = starts[talk]
    if turns > 1:
        waits = np.rint(generator.exponential(sessions.think_s * 1e9, count)).astype(np.int64)
        waits[turn == 0] = 0
        whole = np.cumsum(waits)
        arrival = arrival + whole - whole[talk * turns]
    text = np.cumsum(inputs + results) - results
    before = text[talk * turns] - inputs[talk * turns]
    prompt = text - before + sessions.shared
    order = np.lexsort((turn, talk, arrival)) if turns > 1 else np.arange(count)
    prefixes = Prefixes(
        talk[order] if turns > 1 else np.full(count, -1, np.int64),
        groups[talk][order] if sessions.groups else np.full(count, -1, np.int64),
        sessions.shared,
    )
    return Requests(arrival[order], prompt[order], results[order], min(concurrency, count), prefixes)


def parse_sessions(shared: str | None, turns: str | None) -> Sessions | None:
    """Read `--shared-prefix GROUPS:TOKENS` and `--turns TURNS:THINK`; None where neither is given.

    Raises UserError with the right forms.
    """
    if shared is None and turns is None:
        return None
    groups = tokens = 0
    count, think = 1, 0.0
    if shared is not None:
        groups, tokens = (_whole(word, shared) for word in _two(shared, "--shared-prefix", SHARED_FORM))
    if turns is not None:
        first, second = _two(turns, "--turns", TURNS_FORM)
        think = number(second, "--turns", turns, TURNS_FORM)
        length = number(first, "--turns", turns, TURNS_FORM)
        if length != int(length) or not 2 <= length <= 1000 or not 0 < think <= 1e6:
            raise UserError(f'--turns "{turns}": needs 2 to 1000 turns and a mean time above 0 s; write 4:10')
        count = int(length)
    return Sessions(groups, tokens, count, think)


def _two(text: str, option: str, form: str) -> tuple[str, str]:
    """Part a text at its one colon."""
    words = text.split(":")
    if len(words) != 2:
        raise UserError(f'{option} "{text}" is unknown; write {form}')
    return words[0], words[1]


def _whole(word: str, text: str) -> int:
    """Read a count of groups or tokens."""
    value = number(word, "--shared-prefix", text, SHARED_FORM)
    if value != int(value) or not 1 <= value <= 1_000_000:
        raise UserError(
            f'--shared-prefix "{text}": {word} is no whole number from 1 to 1000000; write 8:1024'
        )
    return int(value)
