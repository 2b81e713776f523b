"""The rotary embedding: what configurations say of it, and its frequencies under YaRN."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.json_numbers import NumberReader

Tensor = torch.Tensor


@dataclass(frozen=True)
class RopeScaling:
    """Say how rotary frequencies are stretched for longer contexts."""

    kind: str
    """`linear`, `llama3` (by wavelength), `yarn` or `factors` (one divisor a frequency)"""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0
    factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_turns: bool = True
    """the bounds of YaRN's ramp are whole dimensions"""
    attention_factor: float = 1.0
    """multiplies queries and keys"""
    query_beta: float = 0.0
    """queries at position p are multiplied by 1 + query_beta * ln(1 + floor(p / original_context))"""


def read_rope(reader: NumberReader) -> tuple[float, RopeScaling | None]:
    """Read base and scaling of the rotary embedding, in the old keys or under `rope_parameters`.

    Raises UserError for a kind of scaling that is not known.
    """
    nested = reader.object("rope_parameters")
    if nested is not None:
        if any(isinstance(value, dict) for value in nested.values()):
            raise UserError(
                f'{reader.where}: "rope_parameters" that differ by kind of layer are not supported; use another model.'
            )
        reader = NumberReader({**reader.values, "rope_scaling": nested, **nested}, reader.where)
    theta = reader.number("rope_theta", 10000.0)
    if reader.number("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{reader.where}: a partial rotary embedding is not supported; use another model.")
    scaling = reader.object("rope_scaling")
    if scaling is None:
        return theta, None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    values = NumberReader(scaling, reader.where)
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind, factor=values.number("factor", 1.0))
    if kind == "factors":
        return theta, RopeScaling(kind, factors=values.numbers("factors"))
    if kind == "llama3":
        return theta, RopeScaling(
            kind,
            factor=values.number("factor", 1.0),
            low_freq_factor=values.number("low_freq_factor", 1.0),
            high_freq_factor=values.number("high_freq_factor", 4.0),
            original_context=values.count("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return theta, _yarn(values, reader)
    raise UserError(
        f"{reader.where}: rope scaling {json.dumps(kind)} is unknown; known are linear, llama3 and yarn."
    )


def _yarn(values: NumberReader, outer: NumberReader) -> RopeScaling:
    """Read YaRN's numbers; what they leave out follows from the context lengths."""
    context = outer.count("max_position_embeddings")
    original = values.count("original_max_position_embeddings", context)
    factor = values.number("factor", context / original)
    beta = values.number("llama_4_scaling_beta", 0.0)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=values.number("beta_fast", 32.0),
        beta_slow=values.number("beta_slow", 1.0),
        whole_turns=values.flag("truncate", default=True),
        attention_factor=values.number("attention_factor", _attention_factor(values, factor)),
        query_beta=beta,
    )


def _attention_factor(values: NumberReader, factor: float) -> float:
    """Compute what queries and keys are multiplied by (arXiv:2309.00071, section 3.4, and DeepSeek's two knobs)."""

    def scale(knob: float) -> float:
        return 0.1 * knob * math.log(factor) + 1 if factor > 1 else 1.0

    if values.values.get("mscale") and values.values.get("mscale_all_dim"):
        return scale(values.number("mscale", 1.0)) / scale(values.number("mscale_all_dim", 1.0))
    return scale(1.0)


def yarn_frequencies(plain: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Stretch the frequencies [head_dim / 2] of slow pairs by the factor and keep those of fast ones.

    Between the pairs that turn `beta_fast` and `beta_slow` times in the original context the two are blended
    (YaRN, arXiv:2309.00071, section 3.2).
    """
    dimensions = 2 * len(plain)

    def pair(turns: float) -> float:
        return dimensions * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.whole_turns:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    # Two equal bounds are a step.
    span = high - low or 0.001
    stretched = ((torch.arange(len(plain), dtype=plain.dtype) - low) / span).clamp(0, 1)
    return plain / scaling.factor * stretched + plain * (1 - stretched)


def query_gain(positions: Tensor, scaling: RopeScaling) -> Tensor:
    """Compute what queries at positions [T] are multiplied by beyond the original context (Llama 4's rule)."""
    return 1 + scaling.query_beta * (positions // scaling.original_context).double().log1p()
