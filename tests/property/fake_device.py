"""Code on a GPU that is not there: fake CUDA tensors that fail wherever a real one would wait for the host.

Fake tensors refuse `.item()`, `nonzero`, boolean indexing and `if` on a tensor; the modes here refuse what they let
pass, copies to the CPU and iteration, and let torch's CPU build index fake CUDA tensors, which it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _StayOnDevice(TorchDispatchMode):
    """Refuse operations whose results are not on the device, and those that take a tensor apart row by row."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 -- torch's
        """Run the operation, then look at where its results are."""
        assert func is not torch.ops.aten.unbind.int, "a tensor is iterated over"
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, tuple | list) else [result]
        gone = [one for one in found if isinstance(one, Tensor) and one.device.type != "cuda"]
        assert not gone, f"{func} gives a tensor on {gone[0].device}"
        return result


class _Indexing(TorchFunctionMode):
    """Index by operations: the indexing of torch's CPU build asks for the current CUDA device first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 -- torch's
        """Replace reads and writes by index, and what else asks likewise; pass all others on."""
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        if func is Tensor.copy_:
            return torch.ops.aten.copy_.default(*args)
        if func is Tensor.contiguous:
            return args[0].clone(memory_format=torch.contiguous_format)
        if func is Tensor.__getitem__:
            return _read(*args)
        if func is Tensor.__setitem__:
            return _write(*args)
        return func(*args, **(kwargs or {}))


def _viewed(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:  # noqa: ANN401 -- any index
    """Apply the ints, slices and None of an index -> (view, the tensors of the index by dimension)."""
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        at = next(place for place, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (tensor.dim() - taken)
    tensors: list[Tensor | None] = []
    for part in parts:
        dim = len(tensors)
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        tensors.append(part if isinstance(part, Tensor) else None)
    return tensor, tensors


def _read(tensor: Tensor, index: Any) -> Tensor:  # noqa: ANN401 -- any index
    """Return `tensor[index]`."""
    view, tensors = _viewed(tensor, index)
    return torch.ops.aten.index.Tensor(view, tensors) if any(one is not None for one in tensors) else view


def _write(tensor: Tensor, index: Any, value: Tensor | float) -> None:  # noqa: ANN401 -- any index
    """Do `tensor[index] = value`."""
    view, tensors = _viewed(tensor, index)
    if any(one is not None for one in tensors):
        values = value if isinstance(value, Tensor) else view.new_full((), value)
        torch.ops.aten.index_put_.default(view, tensors, values)
    elif isinstance(value, Tensor):
        torch.ops.aten.copy_.default(view, value)
    else:
        view.fill_(value)


@contextmanager
def device_only() -> Iterator[None]:
    """Run what is inside on fake CUDA tensors, and fail where it would wait for the host."""
    stay: TorchDispatchMode = _StayOnDevice()  # type: ignore[no-untyped-call]  # torch's own is not typed
    with FakeTensorMode(), torch.device("cuda"), stay, _Indexing():
        yield


def shapes_of(values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[torch.Size, torch.dtype, str]]:
    """Return shape, type and device of each tensor."""
    listed = values.values() if isinstance(values, Mapping) else values
    return [(one.shape, one.dtype, one.device.type) for one in listed]
