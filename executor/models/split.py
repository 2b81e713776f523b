"""How a transformer is cut for tensor parallelism: every process holds some heads and some of the feed-forward.

q, k, v, gate and up are cut by outputs, the output projection and down by inputs (Megatron-LM, arXiv:1909.08053), so
that a layer needs two sums over the processes: behind attention and behind the feed-forward. Experts are cut like a
dense network, so that every process runs the same ones. Heads stay whole, and a KV head lies with the query heads that
read it. Embedding, norms, router and language model head are whole everywhere; only process 0 computes logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import Adapter, LowRank, fused_places
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig

Tensor = torch.Tensor

BY_OUTPUTS = (names.QUERY, names.KEY, names.VALUE, names.GATE, names.UP)
BY_INPUTS = (names.OUTPUT, names.DOWN)
_EXPERT = re.compile(r"^mlp\.experts\.\d+\.")


@dataclass(frozen=True)
class Split:
    """Name one of `size` equal parts of a model."""

    rank: int
    size: int

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Give the numbers of this part; raises UserError where heads or feed-forward cannot be shared out evenly."""
        counts = {
            "attention heads": whole.heads,
            "KV heads": whole.kv_heads,
            "feed-forward units": whole.ffn,
        }
        experts = whole.experts
        if experts is not None:
            counts["units an expert"] = experts.ffn
            experts = replace(experts, ffn=experts.ffn // self.size)
        for what, count in counts.items():
            if count % self.size:
                fits = [size for size in range(2, count + 1) if not any(n % size for n in counts.values())]
                known = ", ".join(map(str, fits)) or "no number above 1"
                raise UserError(
                    f"the model has {count} {what}, which {self.size} processes cannot share evenly; "
                    f"--tensor-parallel may be {known}"
                )
        return replace(
            whole,
            heads=whole.heads // self.size,
            kv_heads=whole.kv_heads // self.size,
            ffn=whole.ffn // self.size,
            experts=experts,
        )

    def part(self, tensor: Tensor, dimension: int) -> Tensor:
        """Cut this part out of a dimension."""
        count = tensor.shape[dimension] // self.size
        return tensor.narrow(dimension, self.rank * count, count).contiguous()

    def weight(self, name: str, tensor: Tensor) -> Tensor:
        """Cut this part out of a weight, by its name of `architectures.py`; an expert's modules are a network's."""
        module, _, kind = name.partition("layers.")[2].partition(".")[2].rpartition(".")
        module = _EXPERT.sub("mlp.", module)
        if module in BY_OUTPUTS:
            return self.part(tensor, 0)
        if module in BY_INPUTS and kind == "weight":
            return self.part(tensor, 1)
        if module in BY_INPUTS and self.rank > 0:
            # A bias is added once: the parts are summed.
            return torch.zeros_like(tensor)
        return tensor

    def adapter(self, adapter: Adapter, whole: ModelConfig) -> Adapter:
        """Cut this part out of an adapter of the whole model, which is laid out like the fused weights."""
        layers = []
        for index, layer in enumerate(adapter.layers):
            places = fused_places(whole, index)
            layers.append({place: self._update(update, places[place]) for place, update in layer.items()})
        return Adapter(adapter.name, adapter.rank, layers)

    def _update(self, update: LowRank, parts: list[tuple[str, int, int]]) -> LowRank:
        if parts[0][0] in BY_INPUTS:
            return LowRank(self.part(update.down, 1), update.up)
        lines = update.up.split([outputs for _, outputs, _ in parts])
        return LowRank(update.down, torch.cat([self.part(line, 0) for line in lines]))


class SplitWeights(Mapping[str, Tensor]):
    """Read one part of a model's weights by the names of `architectures.py`.

    `called` maps these to the names in `whole`, where they differ.
    """

    def __init__(self, whole: Mapping[str, Tensor], split: Split, called: Callable[[str], str] = str) -> None:
        self._whole = whole
        self._split = split
        self._called = called

    def __getitem__(self, name: str) -> Tensor:
        return self._split.weight(name, self._whole[self._called(name)])

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)
