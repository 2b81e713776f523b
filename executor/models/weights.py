"""Weights as a forward uses them: read by name, checked, fused, converted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig

Tensor = torch.Tensor

_REAL = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Norm:
    """Hold an RMSNorm: its weight times sqrt(n), and sqrt(n eps), for n dimensions."""

    weight: Tensor
    floor: Tensor


@dataclass(frozen=True)
class Layer:
    """Hold one layer's weights; q, k, v are one matrix, gate and up another.

    With a router, gate_up and down have a first dimension that counts experts.
    """

    attention_norm: Norm
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Norm | None
    key_norm: Norm | None
    output: Tensor
    output_bias: Tensor | None
    ffn_norm: Norm
    gate_up: Tensor
    down: Tensor
    router: Tensor | None = None

    @property
    def head_norms(self) -> list[Tensor]:
        """Give weight and floor of the norm of queries, then of keys, as `kernels/layer.py:turn_heads` takes them."""
        norms = [norm for norm in (self.query_norm, self.key_norm) if norm is not None]
        return [part for norm in norms for part in (norm.weight, norm.floor)]


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype of residual stream, norms, attention and KV cache: float32, float64 for a float64 model."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise UserError for a weight that holds NaN or infinity: all that it touches would be noise."""
    # Extremes carry NaN on, and cost a tenth of `isfinite` of each number.
    if tensor.numel() and not all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor)):
        raise UserError(
            f'weight "{name}" holds numbers that are not finite; its file is damaged, or was saved after training had '
            "diverged: fetch it again, or take another checkpoint."
        )


class WeightReader:
    """Read weights by name, check their shapes, fuse and convert them.

    `called` maps the names of `architectures.py` to those of the files, where these differ.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        rms_eps: float,
        called: Callable[[str], str] = str,
    ) -> None:
        self.weights = weights
        self.dtype = dtype
        self.wide = wide_dtype(dtype)
        self.rms_eps = rms_eps
        self.called = called

    def layer(self, config: ModelConfig, index: int, *, inputs: int | None = None) -> Layer:
        """Read one layer; `inputs` is the width that its attention reads, the hidden size where None."""
        prefix = f"model.layers.{index}."
        query, keys, hidden = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden
        inputs = hidden if inputs is None else inputs
        parts = [(prefix + names.QUERY, query), (prefix + names.KEY, keys), (prefix + names.VALUE, keys)]
        router, gate_up, down = self._feed_forward(config, index)
        return Layer(
            attention_norm=self.norm(prefix + names.ATTENTION_NORM, hidden),
            qkv=torch.cat([self.matrix(f"{name}.weight", size, inputs) for name, size in parts]),
            qkv_bias=torch.cat([self.bias(name, size) for name, size in parts]) if config.qkv_bias else None,
            query_norm=self.norm(prefix + names.QUERY_NORM, config.head_dim) if config.qk_norm else None,
            key_norm=self.norm(prefix + names.KEY_NORM, config.head_dim) if config.qk_norm else None,
            output=self.matrix(f"{prefix}{names.OUTPUT}.weight", hidden, query),
            output_bias=self.bias(prefix + names.OUTPUT, hidden) if config.output_bias else None,
            ffn_norm=self.norm(prefix + names.FFN_NORM, hidden),
            gate_up=gate_up,
            down=down,
            router=router,
        )

    def _feed_forward(self, config: ModelConfig, index: int) -> tuple[Tensor | None, Tensor, Tensor]:
        """Read router, gate over up, and down, of one network or of each expert."""
        prefix, experts = f"model.layers.{index}.", config.experts
        dense = (names.GATE, names.UP, names.DOWN)
        if experts is None or index not in experts.layers:
            return None, *self._network([prefix + name for name in dense], config.hidden, config.ffn)
        router = self.matrix(prefix + names.ROUTER, experts.count, config.hidden)
        read = [
            self._network([prefix + names.expert(number, name) for name in dense], config.hidden, experts.ffn)
            for number in range(experts.count)
        ]
        return router, torch.stack([each[0] for each in read]), torch.stack([each[1] for each in read])

    def _network(self, modules: list[str], hidden: int, ffn: int) -> tuple[Tensor, Tensor]:
        """Read gate over up [2 * ffn, hidden], and down [hidden, ffn]."""
        gate, up, down = (f"{module}.weight" for module in modules)
        wide = torch.cat((self.matrix(gate, ffn, hidden), self.matrix(up, ffn, hidden)))
        return wide, self.matrix(down, hidden, ffn)

    def matrix(self, name: str, *shape: int) -> Tensor:
        """Read a weight in the dtype of matrix products."""
        return self._finite(name, self._read_real(name, shape).to(self.dtype))

    def norm(self, name: str, size: int) -> Norm:
        """Read the weight of a norm, which stays wide."""
        weight = self._finite(name, self._read_real(name, (size,)).double()) * math.sqrt(size)
        return Norm(weight.to(self.wide), torch.tensor(math.sqrt(size * self.rms_eps), dtype=self.wide))

    def bias(self, name: str, size: int) -> Tensor:
        """Read a bias in the dtype of matrix products."""
        name = f"{name}.bias"
        return self._finite(name, self._read_real(name, (size,)).to(self.dtype))

    def table(self, name: str, size: int) -> Tensor:
        """Read integers, int64 [size]."""
        return self._read(name, (size,)).to(torch.int64)

    def _finite(self, name: str, tensor: Tensor) -> Tensor:
        """Give a tensor back; raises UserError where it holds NaN or infinity."""
        require_finite(self.called(name), tensor)
        return tensor

    def _read_real(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor of numbers; raises UserError for integers, and for floats that mean nothing without scales."""
        tensor = self._read(name, shape)
        if tensor.dtype not in _REAL:
            known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _REAL))
            raise UserError(
                f'weight "{self.called(name)}" is stored as {str(tensor.dtype).removeprefix("torch.")}; known are '
                f"{known}, and float8_e4m3fn beside scales."
            )
        return tensor

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor; raises UserError where it is missing or of another shape."""
        name = self.called(name)
        try:
            tensor = self.weights[name]
        except KeyError:
            raise UserError(
                f'the model has no weight "{name}" of shape {list(shape)}; its files are incomplete, '
                "fetch it again."
            ) from None
        if tuple(tensor.shape) != shape:
            raise UserError(
                f'weight "{name}" has shape {list(tensor.shape)}, config.json asks for {list(shape)}; '
                "the files are not of one model, fetch it again."
            )
        return tensor
