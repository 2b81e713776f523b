"""The `sample` operator with a sequential head: each token is drawn after the one before it is known.

The head adds a bias to a row's logits that reads the token drafted before (DSpark's Markov head); the law given
back is the one after the bias, which the tokens were drawn from.
A draw is named by its step besides its position: a position that is drafted again in a later round is nearer to the
round's start then, so its token is drawn anew. A verify budget may therefore read what earlier rounds have drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Chooser, Key, PlainChooser
from fsm_spec.kernels.law import SamplingParams, SamplingRows
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import Rule, sample, sample_plain


def sample_sequential(  # noqa: PLR0913 -- the operator's inputs, one each
    logits: Tensor,
    first: Tensor,
    bias: Callable[[int, Tensor], Tensor],
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
    want_law: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Draft a token for each row of n requests, in order -> (tokens int64 [n, g], laws [n, g, V] or None).

    Shapes: logits [n, g, V]; `first` [n] are the tokens before row 0; seed [n]; position [n, g].
    `bias(k, previous)` is called once for each k = 0 .. g - 1, in order, with the tokens [n] before row k -> [n, V].
    """
    tokens, laws = [], []
    previous = first
    for step in range(logits.shape[1]):
        corrected = logits[:, step] + bias(step, previous)
        previous, law = sample(
            corrected,
            rows,
            seed,
            salted(position[:, step], torch.full_like(seed, step)),
            Purpose.DRAFT,
            chooser,
            rule,
            exclude=exclude,
            want_law=want_law,
        )
        tokens.append(previous)
        laws.append(law)
    found = [law for law in laws if law is not None]
    return torch.stack(tokens, 1), torch.stack(found, 1) if want_law else None


def sample_sequential_plain(
    logits: Sequence[Sequence[float]],
    first: int,
    bias: Callable[[int, int], Sequence[float]],
    params: SamplingParams,
    keys: Sequence[Key],
    chooser: PlainChooser,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
) -> tuple[list[int], list[list[float]]]:
    """Draft the tokens of one request as `sample_sequential` does, in plain Python -> (tokens, laws).

    `keys` name the draw of each row by its position.
    """
    tokens: list[int] = []
    laws: list[list[float]] = []
    previous = first
    for step, (line, key) in enumerate(zip(logits, keys, strict=True)):
        corrected = [value + added for value, added in zip(line, bias(step, previous), strict=True)]
        own = key._replace(position=salted(key.position, step))
        previous, law = sample_plain(corrected, params, own, chooser, rule, exclude=exclude)
        tokens.append(previous)
        laws.append(law)
    return tokens, laws
