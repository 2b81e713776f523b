"""The `sample` operator: one token a row, by the row's law or by its argmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from fsm_spec.kernels.choose import Chooser, Key, PlainChooser
from fsm_spec.kernels.law import (
    SamplingParams,
    SamplingRows,
    argmax_tokens,
    as_real,
    law,
    law_plain,
    point_mass,
)
from fsm_spec.kernels.randomness import Purpose

Rule = Literal["law", "argmax", "argmax_of_law"]


def sample(  # noqa: PLR0913 -- the operator's inputs, one each
    logits: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    purpose: Purpose,
    chooser: Chooser,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
    want_law: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Choose a token for each row -> (tokens int64 [n], law [n, V] or None).

    Shapes: logits [n, V]; seed and position int64 [n].

    The law is the one that was sampled from: under `argmax`, a point mass. `argmax_of_law` gives the softmax beside an
    argmax, which is not the proposal's law: with it, the output law is not the target's.
    """
    if rule == "argmax" or rows.all_greedy:
        tokens = argmax_tokens(logits, exclude)
        return tokens, point_mass(tokens, as_real(logits)) if want_law else None
    p = law(logits, rows, exclude)
    if rule == "argmax_of_law":
        return argmax_tokens(logits, exclude), p if want_law else None
    return chooser.choose(p, seed, position, purpose), p if want_law else None


def sample_plain(
    logits: Sequence[float],
    params: SamplingParams,
    key: Key,
    chooser: PlainChooser,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
) -> tuple[int, list[float]]:
    """Choose one token as `sample` does, in plain Python -> (token, law)."""
    surest = law_plain(logits, SamplingParams(), exclude)
    p = surest if rule == "argmax" else law_plain(logits, params, exclude)
    return chooser.choose_one(p if rule == "law" else surest, key), p
