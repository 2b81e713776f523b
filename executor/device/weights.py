"""Models on a device: copies of what the host loaded, all tensors moved, and the view of the weights in force.

An adapter acts on gated rows. Where all rows of a phase are gated, a second copy of the layers with the adapter
merged into them runs it as fast as the base weights do; it is made where memory allows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fsm_spec.executor.adapter import Adapter, LowRank
from fsm_spec.executor.device.place import Place
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.models.weights import Layer

# What a second copy leaves for graphs and activations.
_SPARE = 2 * 2**30
T = TypeVar("T")
Move = Callable[[Tensor], Tensor]


def moved(value: T, move: Move, done: dict[int, Any] | None = None) -> T:
    """Copy a model with every tensor moved; tensors and parts that are shared stay shared.

    Knows what models are made of: tensors, lists, tuples, mappings, dataclasses and plain objects of this package.
    """
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]  # type: ignore[no-any-return]
    found: Any = value
    if isinstance(value, Tensor):
        found = move(value)
    elif isinstance(value, list):
        found = [moved(each, move, done) for each in value]
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        found = tuple(moved(each, move, done) for each in value)
    elif isinstance(value, dict):
        found = {key: moved(each, move, done) for key, each in value.items()}
    elif type(value).__module__.startswith("fsm_spec."):
        return _part(value, move, done)  # type: ignore[no-any-return]
    done[id(value)] = found
    return found  # type: ignore[no-any-return]


def _part(value: Any, move: Move, done: dict[int, Any]) -> Any:  # noqa: ANN401 -- a part of a model
    """Copy an object of this package."""
    found = copy.copy(value)
    done[id(value)] = found
    names = [each.name for each in fields(value)] if is_dataclass(value) else list(vars(value))
    for name in names:
        # A frozen dataclass is being made here, by nobody else seen.
        object.__setattr__(found, name, moved(getattr(value, name), move, done))
    return found


def to_device(value: T, device: torch.device) -> T:
    """Copy a model to a device; on the CPU it stays what it is."""
    return value if device.type == "cpu" else moved(value, lambda tensor: tensor.to(device))


def bytes_of(value: Any) -> int:  # noqa: ANN401 -- any model
    """Count the bytes of a model's tensors, shared ones once."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    moved(value, note)
    return sum(seen.values())


def fused(model: Transformer, adapter: Adapter) -> Transformer:
    """Give a model whose layers have an adapter merged into their weights; all else is shared."""
    merged = copy.copy(model)
    merged.adapter = None
    merged.layers = [
        _merged(layer, updates) for layer, updates in zip(model.layers, adapter.layers, strict=True)
    ]
    return merged


def _merged(layer: Layer, updates: Mapping[str, LowRank]) -> Layer:
    """Give a layer with all its updates in its weights."""
    changed: dict[str, Any] = {
        place: _merge(getattr(layer, place), update) for place, update in updates.items()
    }
    return replace(layer, **changed)


def _merge(weight: Tensor, update: LowRank) -> Tensor:
    """Add an update to a weight, summed in float32 at least."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(wide) + update.up.to(wide) @ update.down.to(wide)).to(weight.dtype)


class Weights:
    """Say which weights run a phase, and name the view in force, which stands in every graph's key.

    `fuse`: make the second copy always or never; None makes it where the device has room for it.
    """

    def __init__(self, model: Transformer, place: Place, *, fuse: bool | None = None) -> None:
        self.model = model
        self.place = place
        self.fuse = fuse
        self._adapter: Adapter | None = None
        self._fused: Transformer | None = None
        # Counted, as another adapter may come to lie where the last one did.
        self._views = 0

    def view(self) -> str:
        """Name the weights in force; another adapter is another view, and has another copy."""
        adapter = self.model.adapter
        if adapter is not self._adapter:
            self._adapter, self._fused = adapter, None
            self._views += 1
            if adapter is not None and self._has_room():
                self._fused = fused(self.model, adapter)
        if adapter is None:
            return "base"
        return f"{'gated' if self._fused is None else 'fused'} {adapter.name} {self._views}"

    def _has_room(self) -> bool:
        if self.fuse is not None:
            return self.fuse
        spare = self.place.spare_bytes()
        return spare is not None and spare > bytes_of(self.model.layers) + _SPARE

    def of(self, *, gated: bool) -> Transformer:
        """Give the model of a phase; with `gated`, all of its rows are."""
        self.view()
        return self._fused if gated and self._fused is not None else self.model
