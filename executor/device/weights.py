"""Models on a device: copies of what the host loaded, all tensors moved, and the view of the weights in force."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

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
