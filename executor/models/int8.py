"""Weights in 8-bit integers, for models on a CPU: products read half the bytes of bfloat16.

A weight is rounded per output: its largest magnitude becomes 127. A row is rounded to 16 bits by its own largest
magnitude, as the sum of two rows of 8-bit integers, so that one product of integers serves both halves and only the
weights lose precision. Sums of integers are exact and each row has its own scale, so that what a row gives depends
neither on the rows beside it nor on their number.
"""

# ruff: noqa: ANN001, ANN202 - numba infers types

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import LowRank
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.transformer import Pass, RaggedPass, Transformer
from fsm_spec.executor.models.weights import Layer
from fsm_spec.jit import jit
from fsm_spec.kernels.adapter import add_low_rank

Tensor = torch.Tensor

# The products of one layer, by the names of `LayerStack._project`.
PLACES = ("qkv", "output", "gate_up", "down")
_MOST = 127
# A row is `high * _BASE + low`, both within 127.
_BASE = 2 * _MOST
_STEPS = _BASE * _MOST
# A row or an output of zeros has no magnitude to divide by.
_LEAST = torch.finfo(torch.float32).tiny


class Int8Weight:
    """Hold a weight [outputs, inputs] as 8-bit integers, packed once for oneDNN's products, and a scale an output."""

    def __init__(self, weight: Tensor) -> None:
        """Round a weight of floats to its nearest integers."""
        wide = weight.float()
        self.scale = (wide.abs().amax(1) / _MOST).clamp_min(_LEAST)
        self.zero = torch.zeros(len(weight), dtype=torch.int32)
        integers = (wide / self.scale[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(integers, None)

    def product(self, rows_in: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply rows [T, inputs] float32 -> [T, outputs] float32; the floor is one read of the integers."""
        count = len(rows_in)
        if not count:
            return rows_in.new_zeros(0, len(self.scale))
        halves, scale = split_rows(rows_in)
        both = torch.ops.onednn.qlinear_pointwise(
            halves, 1.0, 0, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out = torch.add(both[count:], both[:count], alpha=_BASE).mul_(scale)
        return out if bias is None else out.add_(bias)


def split_rows(rows_in: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows [T, n] to 16 bits -> (int8 [2 T, n], the high halves before the low ones; scales [T, 1]).

    A row that is not finite has a scale that is not, so that its products are not either.
    """
    rows_in = rows_in.float().contiguous()
    magnitude = torch.linalg.vector_norm(rows_in, float("inf"), dim=1, keepdim=True)
    scale = (magnitude / _STEPS).clamp_min_(_LEAST)
    halves = torch.empty(2 * len(rows_in), rows_in.shape[1], dtype=torch.int8)
    _split(rows_in.numpy(), scale.numpy(), halves.numpy())
    return halves, scale


# In plain torch this takes ten launches, which cost about as much as the product of one row.
@jit(sources=(__file__,))
def _split(rows_in, scale, halves):  # type: ignore[no-untyped-def]
    """Write the halves of all rows."""
    count, width = rows_in.shape
    for row in range(count):
        inverse = np.float32(1) / scale[row, 0]
        for column in range(width):
            whole = np.rint(rows_in[row, column] * inverse)
            high = np.rint(whole * np.float32(1 / _BASE))
            halves[row, column] = np.int8(high)
            halves[count + row, column] = np.int8(whole - high * np.float32(_BASE))


class Int8Transformer(Transformer):
    """Be a transformer whose layers and head are 8-bit integers; embeddings and norms stay as they are read.

    Its layers keep the shapes of their weights alone. Raises UserError for a model or a CPU that cannot run so.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        called: Callable[[str], str] = str,
    ) -> None:
        """Read the weights in `dtype`, layer by layer, and round each."""
        refuse_int8(config)
        self.products: list[dict[str, Int8Weight]] = []
        super().__init__(config, weights, dtype, called)
        self.rows_dtype = torch.float32
        # Draft heads without a head of their own read the model's, so that stays beside this one.
        self.integer_head = Int8Weight(self.head)

    def _keep(self, layer: Layer) -> Layer:
        self.products.append({place: Int8Weight(getattr(layer, place)) for place in PLACES})
        return replace(layer, **{place: getattr(layer, place).to("meta") for place in PLACES})

    def _project(
        self,
        rows_in: Tensor,
        weight: Tensor,  # noqa: ARG002 -- its integers stand in `products`
        bias: Tensor | None,
        shared: Pass,
        index: int,
        place: str,
    ) -> Tensor:
        """Apply a weight to all rows, and the adapter's update of that weight to the gated rows."""
        assert isinstance(shared, RaggedPass), "8-bit weights run ragged rows"
        out = self.products[index][place].product(rows_in, bias)
        update: LowRank | None = None if self.adapter is None else self.adapter.layers[index].get(place)
        if shared.gated is not None and update is not None:
            add_low_rank(out, rows_in, shared.gated, update.down, update.up)
        return out

    def read_logits(self, read: Tensor) -> Tensor:
        """Apply the language model head to normed streams [L, hidden] -> [L, vocab] float32."""
        return self.integer_head.product(read)


def refuse_int8(config: ModelConfig) -> None:
    """Raise UserError for a model, or on a CPU, that 8-bit weights cannot run on."""
    if config.experts is not None:
        raise UserError("--quantization int8 takes no mixture of experts; leave it out for this model.")
    if not exact_products():
        raise UserError(
            "--quantization int8 needs exact 8-bit products, which torch gives on x86 with AMX or VNNI; leave it out."
        )


def exact_products() -> bool:
    """Tell whether torch multiplies 8-bit integers here, and exactly: older CPUs cut sums of pairs at 16 bits."""
    if not hasattr(torch.ops.onednn, "qlinear_prepack"):
        return False
    weight = Int8Weight(torch.full((16, 64), float(_MOST)))
    found = weight.product(torch.full((1, 64), float(_STEPS)))
    return bool((found == 64 * _MOST * _STEPS).all())
