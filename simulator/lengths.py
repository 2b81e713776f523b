"""How long prompts and outputs are: the forms of `--input` and `--output`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator.arrivals import number

FORMS = "a number of tokens, uniform:LOW:HIGH, lognormal:MEAN:CV, gamma:MEAN:CV, choice:128,512 or file:FILE"
MOST_TOKENS = 10_000_000  # of one prompt or output; ten times the longest context that models have

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Say how many tokens a prompt or an output has.

    `fixed`; `uniform` between both ends; `lognormal` or `gamma` by mean and coefficient of variation; `choice` or
    `file`: any of `values`, each with the same chance.
    """

    kind: str
    first: float = 0.0
    second: float = 0.0
    values: tuple[int, ...] = ()
    path: Path | None = None

    def draw(self, count: int, generator: np.random.Generator) -> Integers:
        """Return `count` lengths of at least one token, int64 [count]."""
        if self.kind == "fixed":
            return np.full(count, int(self.first), dtype=np.int64)
        if self.kind == "uniform":
            return generator.integers(int(self.first), int(self.second), count, dtype=np.int64, endpoint=True)
        if self.values:
            return generator.choice(np.asarray(self.values, dtype=np.int64), count)
        if self.kind == "gamma":
            values = generator.gamma(1 / self.second**2, self.first * self.second**2, count)
        else:
            # Mean m and coefficient of variation c of the lengths give the normal's parameters.
            spread = math.log1p(self.second**2)
            values = generator.lognormal(math.log(self.first) - spread / 2, math.sqrt(spread), count)
        return np.clip(np.rint(values), 1, MOST_TOKENS).astype(np.int64)

    def describe(self) -> str:
        """Return the option that gives these lengths; of a file only its name."""
        if self.kind == "fixed":
            return str(int(self.first))
        if self.path is not None:
            return f"file:{self.path.name}"
        if self.kind == "choice":
            return f"choice:{','.join(map(str, self.values))}"
        return f"{self.kind}:{self.first:g}:{self.second:g}"


def parse_lengths(text: str, option: str) -> Lengths:
    """Read one of the forms of `--input` and `--output`; `option` is named in errors.

    Raises UserError with the right forms.
    """
    kind, _, rest = text.strip().partition(":")
    words = rest.split(":") if rest else []
    if not rest:
        return Lengths("fixed", _tokens(kind, option, text))
    if kind == "file":
        return Lengths(kind, path=Path(rest), values=_read(Path(rest)))
    if kind == "choice":
        return Lengths(kind, values=tuple(_tokens(word, option, text) for word in rest.split(",")))
    if kind == "uniform" and len(words) == 2:
        low, high = (_tokens(word, option, text) for word in words)
        if low > high:
            raise UserError(
                f'{option} "{text}": the low end {low:g} is above the high end {high:g}; write'
                f" uniform:{high:g}:{low:g}"
            )
        return Lengths(kind, low, high)
    if kind in ("lognormal", "gamma") and len(words) == 2:
        mean, variation = (number(word, option, text, FORMS) for word in words)
        if not 1 <= mean <= MOST_TOKENS or not 0 < variation <= 100:
            raise UserError(
                f'{option} "{text}": needs a mean of at least 1 token and a CV above 0, at most'
                f" 100; write {kind}:1024:1"
            )
        return Lengths(kind, mean, variation)
    raise UserError(f'{option} "{text}" is unknown; write {FORMS}')


def _tokens(word: str, option: str, text: str) -> int:
    """Read a number of tokens."""
    value = number(word, option, text, FORMS)
    if value != int(value) or not 1 <= value <= MOST_TOKENS:
        raise UserError(
            f'{option} "{text}": {word} is no whole number of tokens from 1 to {MOST_TOKENS}; write'
            f" 1024, for example"
        )
    return int(value)


def _read(path: Path) -> tuple[int, ...]:
    """Read lengths from a file, one a line; raises UserError with the number of a broken line."""
    try:
        lines: Sequence[str] = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); give a file with one length a line") from error
    values = []
    for index, line in enumerate(lines, start=1):
        word = line.strip()
        if word:
            if not word.isascii() or not word.isdigit() or not 1 <= int(word[:12]) <= MOST_TOKENS:
                raise UserError(
                    f'{path}:{index}: "{word[:40]}" is no number of tokens from 1 to {MOST_TOKENS}; mend that line'
                )
            values.append(int(word))
    if not values:
        raise UserError(f"{path}: holds no length; give a file with one number of tokens a line")
    return tuple(values)
