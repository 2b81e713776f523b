"""When requests arrive: the forms of `--arrivals`, and the times they give; files are read by `trace_file.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from fsm_spec.errors import UserError

FORMS = (
    "poisson:RATE, gamma:RATE:cv=CV, weibull:RATE:cv=CV, constant:RATE, closed:CONCURRENCY, "
    "closed:CONCURRENCY:ramp=SECONDS, ramp:FROM:TO:SECONDS, burst:RATE:PEAK:EVERY:SECONDS or trace:FILE"
)
RATES = ("poisson", "constant", "gamma", "weibull")
LOW_RATE, HIGH_RATE = 1e-6, 1e6  # requests a second
ON_FINISH = -1  # arrival of a closed loop's request that starts when another one finishes
TRACE_OPTIONS = ("speed", "sample")

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Arrivals:
    """Say when requests arrive: at a rate a second, a number at once, or as a file says.

    `cv` is the coefficient of variation of the gaps (gamma, weibull). `ramp` rises from `rate` to `peak` over
    `seconds` and stays there; `burst` has `rate`, and `peak` for `seconds` at the end of every `every` seconds.
    A closed loop's first requests start evenly over `seconds`. `speed` replays a trace so many times as fast, `sample`
    keeps this share of its requests.
    """

    kind: str
    rate: float = 0.0
    concurrency: int = 0
    path: Path | None = None
    cv: float = 1.0
    peak: float = 0.0
    every: float = 0.0
    seconds: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Return how many times as fast a trace is replayed."""
        return self.options.get("speed", 1.0)

    @property
    def sample(self) -> float:
        """Return the share of a trace's requests that is kept."""
        return self.options.get("sample", 1.0)

    def describe(self) -> str:
        """Return the option that gives these arrivals; of a trace only its file name, not its folder."""
        if self.path is not None:
            return ":".join(
                [f"trace:{self.path.name}", *(f"{name}={value:g}" for name, value in self.options.items())]
            )
        if self.kind == "closed":
            return f"closed:{self.concurrency}" + (f":ramp={self.seconds:g}" if self.seconds else "")
        numbers = {
            "ramp": (self.rate, self.peak, self.seconds),
            "burst": (self.rate, self.peak, self.every, self.seconds),
        }.get(self.kind, (self.rate,))
        words = [self.kind, *(f"{number:g}" for number in numbers)]
        return ":".join([*words, f"cv={self.cv:g}"] if self.kind in ("gamma", "weibull") else words)

    def times_ns(self, count: int, generator: np.random.Generator) -> Integers:
        """Return arrival times, int64 [count] in nanoseconds; a closed loop's later ones are ON_FINISH."""
        if self.kind == "closed":
            places = np.arange(count)
            starts = np.rint(places * (self.seconds * 1e9 / self.concurrency))
            return np.where(places < self.concurrency, starts, ON_FINISH).astype(np.int64)
        if self.kind == "constant":
            return _ns(np.arange(count) / self.rate)
        if self.kind in ("gamma", "weibull"):
            return _ns(np.cumsum(gaps(self.kind, 1.0 / self.rate, self.cv, count, generator)))
        # Poisson arrivals of any rate over time: unit exponentials are the rate's integral (time change).
        unit = np.cumsum(generator.exponential(1.0, count))
        if self.kind == "ramp":
            return _ns(_ramp_times(unit, self.rate, self.peak, self.seconds))
        if self.kind == "burst":
            return _ns(_burst_times(unit, self.rate, self.peak, self.every, self.seconds))
        return _ns(unit / self.rate)


def _ns(seconds: Floats) -> Integers:
    """Round seconds to nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def gaps(family: str, mean: float, cv: float, count: int, generator: np.random.Generator) -> Floats:
    """Draw gaps between arrivals with this mean and coefficient of variation, float64 [count]."""
    if family == "gamma":
        return generator.gamma(1.0 / cv**2, mean * cv**2, count)
    shape = weibull_shape(cv)
    return mean / math.gamma(1 + 1 / shape) * generator.weibull(shape, count)


def weibull_shape(cv: float) -> float:
    """Return the Weibull shape k with this coefficient of variation: CV^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1."""

    def excess(shape: float) -> float:
        return math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) - math.log1p(cv**2)

    return float(brentq(excess, 0.05, 1000.0))


def _ramp_times(unit: Floats, start: float, end: float, seconds: float) -> Floats:
    """Invert the integral of a rate that goes from `start` to `end` in `seconds` and stays there."""
    whole = (start + end) / 2 * seconds
    slope = (end - start) / seconds
    inside = np.minimum(unit, whole)
    # Root of start t + slope t^2 / 2 = unit, in the form that also holds for a slope of 0.
    within = 2 * inside / (start + np.sqrt(np.maximum(0.0, start**2 + 2 * slope * inside)))
    return np.asarray(within + (unit - inside) / end, dtype=np.float64)


def _burst_times(unit: Floats, rate: float, peak: float, every: float, seconds: float) -> Floats:
    """Invert the integral of a rate that jumps to `peak` for the last `seconds` of every period."""
    calm = rate * (every - seconds)
    period = calm + peak * seconds
    cycles, rest = np.divmod(unit, period)
    within = np.where(rest < calm, rest / rate, (every - seconds) + (rest - calm) / peak)
    return np.asarray(cycles * every + within, dtype=np.float64)


# Reading the option ---------------------------------------------------------------------------------------------


def parse_arrivals(text: str) -> Arrivals:
    """Read one of the forms of `--arrivals`; raises UserError with the right forms."""
    kind, _, value = text.strip().partition(":")
    if kind == "trace" and value:
        return _trace(value, text)
    words = value.split(":")
    if kind == "closed":
        ramp = words[1].strip().removeprefix("ramp=") if len(words) == 2 else ""
        if len(words) > 2 or (len(words) == 2 and words[1].strip() == ramp):
            raise UserError(f'--arrivals "{text}" is unknown; write closed:32 or closed:32:ramp=10')
        return Arrivals(
            kind, concurrency=_count(words[0], text), seconds=_seconds(ramp, text) if ramp else 0.0
        )
    if kind in RATES:
        return _with_rate(kind, words, text)
    if kind == "ramp" and len(words) == 3:
        start, end = _rate(words[0], kind, text), _rate(words[1], kind, text)
        return Arrivals(kind, start, peak=end, seconds=_seconds(words[2], text))
    if kind == "burst" and len(words) == 4:
        low, peak = _rate(words[0], kind, text), _rate(words[1], kind, text)
        every, seconds = _seconds(words[2], text), _seconds(words[3], text)
        if seconds >= every:
            raise UserError(
                f'--arrivals "{text}": bursts of {seconds:g} s fill their period of {every:g} s;'
                " write burst:2:20:60:10"
            )
        return Arrivals(kind, low, peak=peak, every=every, seconds=seconds)
    raise UserError(f'--arrivals "{text}" is unknown; write {FORMS}')


def _with_rate(kind: str, words: list[str], text: str) -> Arrivals:
    """Read a rate, and for gamma and weibull the coefficient of variation that they need."""
    rate = _rate(words[0], kind, text)
    if kind in ("poisson", "constant"):
        if len(words) > 1:
            raise UserError(f'--arrivals "{text}" has too many parts; write {kind}:5, or gamma:5:cv=2')
        return Arrivals(kind, rate=rate)
    if len(words) != 2:
        raise UserError(f'--arrivals "{text}" needs a coefficient of variation; write {kind}:5:cv=2')
    variation = number(words[1].strip().removeprefix("cv="), "--arrivals", text, FORMS)
    if not 0.01 <= variation <= 20:
        raise UserError(f'--arrivals "{text}": a CV of {variation:g} lies outside 0.01 to 20; write cv=2')
    return Arrivals(kind, rate=rate, cv=variation)


def _trace(value: str, text: str) -> Arrivals:
    """Read `FILE[:speed=X][:sample=X]`; a file name may hold colons."""
    options: dict[str, float] = {}
    while True:
        rest, colon, last = value.rpartition(":")
        name, equals, word = last.partition("=")
        if not (colon and equals and name in TRACE_OPTIONS):
            break
        amount = number(word, "--arrivals", text, "trace:FILE:speed=2:sample=0.1")
        if not (0 < amount <= 1 if name == "sample" else 1e-6 <= amount <= 1e6):
            bounds = "above 0 and at most 1" if name == "sample" else "from 0.000001 to 1000000"
            raise UserError(f'--arrivals "{text}": {name} {word} is not {bounds}; write {name}=0.5')
        options[name], value = amount, rest
    return Arrivals("trace", path=Path(value), options=dict(sorted(options.items(), reverse=True)))


def _count(value: str, text: str) -> int:
    """Read a concurrency."""
    count = number(value, "--arrivals", text, FORMS)
    if count != int(count) or not 1 <= count <= 1_000_000:
        raise UserError(
            f'--arrivals "{text}": {value} is no count of requests at once from 1 to 1000000; write closed:32'
        )
    return int(count)


def _rate(word: str, kind: str, text: str) -> float:
    """Read requests a second."""
    rate = number(word, "--arrivals", text, FORMS)
    if not LOW_RATE <= rate <= HIGH_RATE:
        raise UserError(
            f'--arrivals "{text}": {word} lies outside 0.000001 to 1000000 requests a second; write {kind}:5'
        )
    return rate


def _seconds(word: str, text: str) -> float:
    """Read a time in seconds."""
    seconds = number(word, "--arrivals", text, FORMS)
    if not 1e-3 <= seconds <= 1e7:
        raise UserError(f'--arrivals "{text}": {word} lies outside 0.001 to 10000000 seconds; write 60')
    return seconds


def number(word: str, option: str, text: str, forms: str) -> float:
    """Read a finite number of an option; raises UserError with its right forms."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f'{option} "{text}": "{word}" is no number; write {forms}')
    return value
