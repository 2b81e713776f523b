"""The `sample` operator with a sequential head in fixed shapes; what it means says `kernels/sequential.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.sampling import sample
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import Rule


def sample_sequential(
    logits: Tensor,
    first: Tensor,
    bias: Callable[[int, Tensor], Tensor],
    sampling: SamplingColumns,
    positions: Tensor,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
    want_law: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Draft a token for each row, in order -> (tokens int64 [n, r], laws [n, r, V] or None).

    Shapes: logits [n, r, V]; `first` int64 [n] are the tokens before row 0; positions int64 [n, r].
    `bias(k, previous)` is called for k = 0 .. r - 1 with the tokens [n] before row k -> [n, V].
    """
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    for step in range(logits.shape[1]):
        one = slice(step, step + 1)
        bias_of_step = bias(step, tokens[-1].squeeze(1) if tokens else first).unsqueeze(1)
        token, law = sample(
            logits[:, one] + bias_of_step,
            sampling,
            salted(positions[:, one], torch.full_like(positions[:, one], step)),
            Purpose.DRAFT,
            rule,
            exclude=exclude,
            want_law=want_law,
        )
        tokens.append(token)
        if law is not None:
            laws.append(law)
    return torch.cat(tokens, 1), torch.cat(laws, 1) if want_law else None
