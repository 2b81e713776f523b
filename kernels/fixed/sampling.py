"""The `sample` operator in fixed shapes; what it means says `kernels/sampling.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns, argmax_tokens, draw, law
from fsm_spec.kernels.law import as_real, point_mass
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import Rule


def sample(
    logits: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    purpose: Purpose,
    rule: Rule = "law",
    *,
    exclude: int | None = None,
    want_law: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Choose a token for each row -> (tokens int64 [n, r], laws [n, r, V] or None).

    Shapes: logits [n, r, V]; positions int64 [n, r]; the parameters of n requests.
    """
    tokens, laws = _sample(logits, *sampling, positions, int(purpose), rule, exclude, want_law)
    return tokens, laws if want_law else None


@torch.library.custom_op("fsm_spec::sample", mutates_args=())
def _sample(  # noqa: PLR0913, PLR0917 -- an operator of torch takes tensors and numbers, one each
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    purpose: int,
    rule: str,
    exclude: int | None,
    want_law: bool,  # noqa: FBT001 -- as above
) -> tuple[Tensor, Tensor]:
    """Choose tokens by the fixed form; the laws are empty unless they are wanted."""
    sampling = SamplingColumns(temperature, top_k, top_p, min_p, seeds)
    return sample_torch(logits, sampling, positions, purpose, rule, exclude=exclude, want_law=want_law)


@_sample.register_kernel("cuda")
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Choose tokens by the Triton kernels."""
    from fsm_spec.kernels.triton import sampling as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    *columns, positions, purpose, rule, exclude, want_law = rest
    return kernels.sample(
        logits, SamplingColumns(*columns), positions, purpose, rule, exclude=exclude, want_law=want_law
    )


@_sample.register_fake
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Give shapes and types."""
    n, r, width = logits.shape
    tokens = logits.new_empty((n, r), dtype=torch.int64)
    return tokens, as_real(logits).new_empty((n, r, width) if rest[-1] else (0,))


def sample_torch(
    logits: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    purpose: int,
    rule: str,
    *,
    exclude: int | None,
    want_law: bool,
) -> tuple[Tensor, Tensor]:
    """Choose tokens in plain torch, as `sample` says -> (tokens [n, r], laws, empty unless wanted)."""
    n, r, width = logits.shape
    flat, each = logits.reshape(n * r, width), sampling.spread(r)
    nothing = as_real(logits).new_empty(0)
    if rule == "argmax":
        tokens = argmax_tokens(flat, exclude)
        laws = point_mass(tokens, as_real(flat)) if want_law else nothing
    elif rule == "argmax_of_law":
        tokens = argmax_tokens(flat, exclude)
        laws = law(flat, each, exclude) if want_law else nothing
    else:
        p = law(flat, each, exclude)
        tokens = draw(p, each.seeds, positions.flatten(), purpose)
        laws = p if want_law else nothing
    return tokens.view(n, r), laws.view(n, r, width) if want_law else laws
