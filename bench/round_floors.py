"""The least that the launches of a round can take: bytes over measured copy bandwidth, products over their rate.

Of each launch: the weights it reads, once; the KV of all requests, once; the logits that operators read, once, in the
head's format. Activations, ids and results are left out: they are a thousandth of these. A launch that finds nobody
alive reads its weights all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fsm_spec.executor.device.mixed import Mixed
from fsm_spec.executor.device.phase import Machine, Phase
from fsm_spec.executor.device.weights import moved


@dataclass(frozen=True)
class Ceilings:
    """Hold what a machine can do: bytes copied, read and written both counted, and products in bfloat16."""

    copy_gb_s: float
    product_tflop_s: float

    def us(self, count: float, flops: float = 0.0) -> float:
        """Give the microseconds that so many bytes and operations take at least."""
        return max(count / self.copy_gb_s / 1e3, flops / self.product_tflop_s / 1e6)


@dataclass(frozen=True)
class Floors:
    """Give the floors of launches of so many requests, each with so many slots of KV."""

    machine: Machine
    ceilings: Ceilings
    batch: int
    context: float

    def of(self, work: object) -> float:
        """Give the floor of what a graph runs, in microseconds; mail and prefill chunks have none."""
        phase = work.phase if isinstance(work, Mixed) else work
        if not isinstance(phase, Phase) or not phase.height:
            return 0.0
        target = self.machine.weights.model
        wanted = self.batch * len(phase.wanted)
        model = target if phase.drafter is None else phase.drafter.model
        inner = next((part for part in (vars(model).get("model"), vars(model).get("body")) if part), model)
        # A draft model may hold the target beside itself, and share its embedding and head.
        read, beside = _bytes(model), {} if model is target else _bytes(target.layers)
        head = _bytes(getattr(inner, "head", target.head))
        tables = {at for owner in (target, inner) for at in _bytes(getattr(owner, "embedding", None))}
        read = {at: size for at, size in read.items() if at in head or at not in beside.keys() | tables}
        body = sum(size for at, size in read.items() if at not in head)
        heads = sum(head.values()) if wanted else 0
        a_byte = 2 / model.dtype.itemsize
        flops = a_byte * (self.batch * phase.height * body + wanted * heads)
        cells = 2 * model.config.layers * model.config.kv_heads * model.config.head_dim
        kv = self.batch * self.context * cells * model.dtype.itemsize
        logits = wanted * target.config.vocab * target.dtype.itemsize
        return self.ceilings.us(body + heads, flops) + self.ceilings.us(kv + logits)


def _bytes(value: Any) -> dict[int, int]:  # noqa: ANN401 -- any part of a model
    """Count the bytes of each tensor, by where it lies."""
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    moved(value, note)
    return found
