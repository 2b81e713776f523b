"""A request as the executor holds it: its text, its sampling parameters, and what was counted about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fsm_spec.executor.grammar import Grammar
from fsm_spec.executor.logprobs import Scores
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.law import SamplingParams

Tokens = NDArray[np.int64]

T = TypeVar("T")

# Room for tokens beyond the prompt that is made at once; more is made by doubling.
_ROOM = 256


@lru_cache(maxsize=1024)
def _shared(value: T) -> T:
    """Give the same object for equal values: requests that ask for the same are then told alike by identity."""
    return value


@dataclass(frozen=True)
class Controls:
    """Hold what changes a request's logits before its laws are taken from them; the defaults change nothing.

    Before `min_tokens` tokens are emitted, no stop token is. `control.py` applies them.
    """

    adjustment: Adjustment = field(default_factory=Adjustment)
    min_tokens: int = 0
    grammar: Grammar | None = None

    @property
    def neutral(self) -> bool:
        """Tell whether nothing is changed."""
        return self.grammar is None and self.min_tokens == 0 and self.adjustment == Adjustment()


class Request:
    """Hold one request; the text is prompt and emitted tokens, and token i stands at position i.

    `scores` collects log-probabilities where they are wanted; `cached` counts the prompt's tokens whose KV was there,
    None before admission. `page_keys` name the text's full pages in a prefix cache.
    `rounds` counts rounds that came to their end, `emitted` the tokens they emitted (the first token is the
    prefill's), `forwards` the forwards of the target model in which a round of this request had rows.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        limit: int,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        stop_ids: Collection[int] = (),
        controls: Controls | None = None,
        scores: Scores | None = None,
    ) -> None:
        self.prompt = len(prompt)
        self.limit = limit
        self.sampling = _shared(sampling or SamplingParams())
        self.seed = seed
        self.stop_ids = _shared(frozenset(stop_ids))
        self.controls = controls or Controls()
        self.scores = scores
        self.controlled = scores is not None or not self.controls.neutral
        self.length = self.prompt
        self.cached: int | None = None
        self.page_keys: list[bytes] = []
        self.rounds = 0
        self.emitted = 0
        self.forwards = 0
        self._buffer = np.zeros(self.prompt + min(limit, _ROOM), np.int64)
        self._buffer[: self.prompt] = prompt

    @property
    def text(self) -> Tokens:
        """View prompt and emitted tokens, int64 [length]."""
        return self._buffer[: self.length]

    @property
    def output(self) -> list[int]:
        """List the emitted tokens."""
        return self.emitted_since(0)

    def emitted_since(self, seen: int) -> list[int]:
        """List the emitted tokens but for the first `seen`."""
        tokens: list[int] = self._buffer[self.prompt + seen : self.length].tolist()
        return tokens

    def append(self, run: Sequence[int] | Tokens) -> None:
        """Add emitted tokens to the text."""
        if not len(run):
            return
        start = self.length
        end = start + len(run)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros(max(end, len(self._buffer)), np.int64)])
        self._buffer[start:end] = run
        if self.scores is not None:
            self.scores.settle(start, run)
        self.length = end

    def halt(self, emitted: int) -> None:
        """Take back the tokens behind a stop string: `emitted` stay."""
        self.length = self.prompt + emitted
        if self.scores is not None:
            self.scores.cut(emitted)
