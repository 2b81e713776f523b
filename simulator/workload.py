"""Workloads: when requests arrive and how long they are, from options or from a trace file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator.trace_file import read_trace

ARRIVAL_FORMS = "poisson:RATE, constant:RATE, closed:CONCURRENCY or trace:FILE"
LENGTH_FORMS = "a number of tokens, uniform:LOW:HIGH or lognormal:MEAN:CV"
MOST_TOKENS = 10_000_000  # of one prompt or output; ten times the longest context that models have
ON_FINISH = -1  # arrival of a closed loop's request that starts when another one finishes

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """Say when requests arrive: at a rate a second, a number at once, or as a file says."""

    kind: str
    rate: float = 0.0
    concurrency: int = 0
    path: Path | None = None

    def describe(self) -> str:
        """Return the option that gives these arrivals; of a trace only its file name, not its folder."""
        if self.path is not None:
            return f"trace:{self.path.name}"
        return f"closed:{self.concurrency}" if self.kind == "closed" else f"{self.kind}:{self.rate:g}"


@dataclass(frozen=True)
class Lengths:
    """Say how many tokens a prompt or an output has: `fixed`, `uniform` between both ends, or `lognormal`."""

    kind: str
    first: float
    second: float = 0.0

    def draw(self, count: int, generator: np.random.Generator) -> Integers:
        """Return `count` lengths of at least one token, int64 [count]."""
        if self.kind == "fixed":
            return np.full(count, int(self.first), dtype=np.int64)
        if self.kind == "uniform":
            return generator.integers(int(self.first), int(self.second), count, dtype=np.int64, endpoint=True)
        # Mean m and coefficient of variation c of the lengths give the normal's parameters.
        spread = math.log1p(self.second**2)
        values = generator.lognormal(math.log(self.first) - spread / 2, math.sqrt(spread), count)
        return np.clip(np.rint(values), 1, MOST_TOKENS).astype(np.int64)

    def describe(self) -> str:
        """Return the option that gives these lengths."""
        if self.kind == "fixed":
            return str(int(self.first))
        return f"{self.kind}:{self.first:g}:{self.second:g}"


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
    starts whenever one finishes. `concurrency` is 0 for open loops.
    """

    arrival_ns: Integers
    prompt_tokens: Integers
    output_tokens: Integers
    concurrency: int = 0

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

    def __post_init__(self) -> None:
        """Refuse missing, impossible or ineffective options."""
        if self.requests is not None and self.requests < 1:
            raise UserError(f"--requests {self.requests} simulates nothing; give at least 1")
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
            return
        missing = [name for name, value in lengths.items() if value is None]
        missing += ["--requests"] if self.requests is None else []
        if missing:
            raise UserError(
                f"{self.arrivals.describe()} arrivals need {' and '.join(missing)}; give, for"
                f" example, {missing[0]} 512"
            )

    def generate(self) -> Requests:
        """Return the requests; times, prompts and outputs are drawn from streams of their own.

        Raises UserError for a trace file that is missing, broken (with the line) or shorter than was asked.
        """
        if self.arrivals.path is not None:
            return self._from_trace(self.arrivals.path)
        if self.requests is None or self.prompt is None or self.output is None:
            raise UserError("a workload without a trace needs --requests, --input and --output")
        times, prompts, outputs = (
            np.random.default_rng(part) for part in np.random.SeedSequence(self.seed).spawn(3)
        )
        count = self.requests
        return Requests(
            self._arrival_ns(count, times),
            self.prompt.draw(count, prompts),
            self.output.draw(count, outputs),
            min(self.arrivals.concurrency, count),
        )

    def _arrival_ns(self, count: int, generator: np.random.Generator) -> Integers:
        """Return arrival times, int64 [count] in nanoseconds."""
        if self.arrivals.kind == "closed":
            return np.where(np.arange(count) < self.arrivals.concurrency, 0, ON_FINISH).astype(np.int64)
        if self.arrivals.kind == "poisson":
            seconds = np.cumsum(generator.exponential(1.0 / self.arrivals.rate, count))
        else:
            seconds = np.arange(count) / self.arrivals.rate
        return np.rint(seconds * 1e9).astype(np.int64)

    def _from_trace(self, path: Path) -> Requests:
        """Return the first requests of a trace."""
        columns = read_trace(path, MOST_TOKENS)
        count = len(columns[0]) if self.requests is None else self.requests
        if count > len(columns[0]):
            raise UserError(
                f"{path}: holds {len(columns[0])} requests, fewer than --requests {count}; ask for fewer"
            )
        arrival_ns, prompts, outputs = (column[:count] for column in columns)
        return Requests(arrival_ns, prompts, outputs)


def parse_arrivals(text: str) -> Arrivals:
    """Read `poisson:5`, `constant:5` (requests a second), `closed:32` (requests at once) or `trace:FILE`.

    Raises UserError with the right forms.
    """
    kind, _, value = text.strip().partition(":")
    if kind == "trace" and value:
        return Arrivals(kind, path=Path(value))
    if kind == "closed":
        count = _number(value, "--arrivals", text, ARRIVAL_FORMS)
        if count != int(count) or not 1 <= count <= 1_000_000:
            raise UserError(
                f'--arrivals "{text}": {value} is no count of requests at once from 1 to 1000000;'
                f" write closed:32"
            )
        return Arrivals(kind, concurrency=int(count))
    if kind in {"poisson", "constant"}:
        rate = _number(value, "--arrivals", text, ARRIVAL_FORMS)
        if not 1e-6 <= rate <= 1e6:
            raise UserError(
                f'--arrivals "{text}": {value} lies outside 0.000001 to 1000000 requests a second;'
                f" write {kind}:5"
            )
        return Arrivals(kind, rate=rate)
    raise UserError(f'--arrivals "{text}" is unknown; write {ARRIVAL_FORMS}')


def parse_lengths(text: str, option: str) -> Lengths:
    """Read a fixed number of tokens, `uniform:LOW:HIGH` or `lognormal:MEAN:CV`; `option` is named in errors.

    Raises UserError with the right forms.
    """
    kind, *words = text.strip().split(":")
    if not words:
        tokens = _tokens(kind, option, text)
        return Lengths("fixed", tokens)
    if kind == "uniform" and len(words) == 2:
        low, high = (_tokens(word, option, text) for word in words)
        if low > high:
            raise UserError(
                f'{option} "{text}": the low end {low:g} is above the high end {high:g}; write'
                f" uniform:{high:g}:{low:g}"
            )
        return Lengths(kind, low, high)
    if kind == "lognormal" and len(words) == 2:
        mean, variation = (_number(word, option, text, LENGTH_FORMS) for word in words)
        if not 1 <= mean <= MOST_TOKENS or not 0 < variation <= 100:
            raise UserError(
                f'{option} "{text}": needs a mean of at least 1 token and a CV above 0, at most'
                f" 100; write lognormal:1024:1"
            )
        return Lengths(kind, mean, variation)
    raise UserError(f'{option} "{text}" is unknown; write {LENGTH_FORMS}')


def _number(word: str, option: str, text: str, forms: str) -> float:
    """Read a finite number."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f'{option} "{text}": "{word}" is no number; write {forms}')
    return value


def _tokens(word: str, option: str, text: str) -> int:
    """Read a number of tokens."""
    value = _number(word, option, text, LENGTH_FORMS)
    if value != int(value) or not 1 <= value <= MOST_TOKENS:
        raise UserError(
            f'{option} "{text}": {word} is no whole number of tokens from 1 to {MOST_TOKENS}; write'
            f" 1024, for example"
        )
    return int(value)
