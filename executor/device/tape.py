"""A stand-in for a captured graph on the CPU: the operations of one call, recorded with the tensors they gave.

A replay runs the same operations on the same tensors and copies what they give into the tensors recorded, as a CUDA
graph writes to the memory of its capture. So what goes wrong with graphs goes wrong here: a tensor bound anew is not
seen, a stale input is used again, and what a graph cannot hold is refused. It is no faster than the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

T = TypeVar("T")

# Operations that wait for the device, or whose results have a size that depends on data.
_REFUSED: Final = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::is_nonzero",
        "aten::item",
        "aten::nonzero",
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::repeat_interleave.Tensor",
    }
)
_INDEXING: Final = frozenset({"aten::index.Tensor", "aten::index_put", "aten::index_put_"})


class CaptureRefused(RuntimeError):
    """Say which operation no graph can hold."""


def _refuse_sync(name: str, inputs: list[Any]) -> None:
    """Raise CaptureRefused for an operation that waits for the device, or whose shape depends on data."""
    if name in _REFUSED:
        raise CaptureRefused(f"{name} waits for the device, or has a size that depends on data")
    if name in _INDEXING and any(isinstance(x, Tensor) and x.dtype == torch.bool for x in inputs[1:]):
        raise CaptureRefused(f"{name} with a bool index has a size that depends on data")


class Tape(TorchDispatchMode):
    """Record the operations of a call; `replay` runs them again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[tuple[Any, Any, Any, list[Tensor | None]]] = []

    def record(self, call: Callable[[], T]) -> T:
        """Run a call and keep its operations; raises CaptureRefused."""
        with self:
            return call()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 -- torch's protocol
        """Run an operation and keep it, unless it only gives another view of what it read."""
        del types
        inputs, _ = tree_flatten((args, kwargs or {}))
        _refuse_sync(func.name(), inputs)
        result = func(*args, **(kwargs or {}))
        outputs = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
        read = {_storage(each) for each in inputs if isinstance(each, Tensor) and each.numel()}
        changes = func._schema.is_mutable  # noqa: SLF001 -- the schema of an operator has no other name
        if changes or not all(each.numel() and _storage(each) in read for each in outputs):
            # What it changes in place is its input again, and already written by a replay.
            into = [None if changes and _storage(each) in read else each for each in outputs]
            self._steps.append((func, args, kwargs or {}, into))
        return result

    def __len__(self) -> int:
        """Count the operations."""
        return len(self._steps)

    def replay(self) -> None:
        """Run all operations again, into the tensors of the record."""
        for func, args, kwargs, outputs in self._steps:
            result = func(*args, **kwargs)
            given = (each for each in tree_flatten(result)[0] if isinstance(each, Tensor))
            for into, value in zip(outputs, given, strict=True):
                if into is not None:
                    into.copy_(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
