"""What a GPU would be told to launch: while requests run on a CPU, each op's launcher for CUDA is called beside it.

The launchers see the tensors of real rounds, and their kernels are not run but noted: with which types, constants and
grids, and which tensors do not lie side by side in memory. `compile_launch` compiles what was noted for a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
}


@dataclass(frozen=True)
class Launch:
    """Hold a launch as Triton compiles it: types of arguments, constants, and arguments that are divisible by 16."""

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: tuple[str, ...]
    options: Mapping[str, int]


@dataclass
class Recorded:
    """Hold the launches of a run."""

    launches: dict[str, Launch] = field(default_factory=dict)
    grids: list[tuple[int, ...]] = field(default_factory=list)
    strided: set[tuple[str, str]] = field(default_factory=set)
    """kernel and argument, where a tensor does not lie side by side"""

    def note(self, kernel: Any, *args: Any, grid: tuple[int, ...], **named: Any) -> None:  # noqa: ANN401 -- Triton's
        """Note a launch in place of running it."""
        options: dict[str, int] = {
            name: named.pop(name) for name in ("num_warps", "num_stages") if name in named
        }
        named.pop("warmup", None)
        given = dict(zip(kernel.arg_names, args, strict=False)) | named
        name = kernel.fn.__name__
        types, constants, divisible = {}, {}, []
        for param in kernel.params:
            value = given[param.name]
            if isinstance(value, Tensor):
                types[param.name] = "*" + TYPES[value.dtype]
                if not value.is_contiguous():
                    self.strided.add((name, param.name))
                if value.data_ptr() % 16 == 0:
                    divisible.append(param.name)
            elif value is None or param.is_constexpr or (value == 1 and not param.do_not_specialize):
                constants[param.name] = value
            else:
                types[param.name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
                if value % 16 == 0 and not param.do_not_specialize:
                    divisible.append(param.name)
        self.grids.append(grid)
        key = f"{name} {kernel.__module__ if name == 'table_step' else ''} {types} {constants} {divisible} {options}"
        self.launches.setdefault(key, Launch(kernel, types, constants, tuple(divisible), options))


class _Beside(TorchDispatchMode):
    """Call the launcher of each op of ours beside the op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 -- torch's
        """Run the op; what its launcher gives must be of the same shapes, in memory of its own."""
        result = func(*args, **(kwargs or {}))
        own = OPDEFS.get(func.name().partition(".")[0])
        launcher = None if own is None else own._backend_fns.get("cuda")
        if launcher is None:
            return result
        given = launcher(*args, **(kwargs or {}))
        read = {
            each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor) and each.numel()
        }
        for one, other in zip(_tensors(result), _tensors(given), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), func
            assert not other.numel() or other.untyped_storage().data_ptr() not in read, func
        return result


def _tensors(value: Any) -> list[Tensor]:  # noqa: ANN401 -- what an op gives
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


@contextmanager
def recorded_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Record what is launched inside, as for a GPU of 132 multiprocessors."""
    from triton.runtime.jit import JITFunction  # noqa: PLC0415 -- where Triton is installed

    from fsm_spec.kernels.triton import adapter, attention  # noqa: PLC0415

    found = Recorded()

    def run(kernel: Any, *args: Any, **named: Any) -> None:  # noqa: ANN401 -- Triton's
        found.note(kernel, *args, **named)

    monkeypatch.setattr(JITFunction, "run", run)
    for module in (adapter, attention):
        monkeypatch.setattr(module, "upcasts", lambda _: False)
        monkeypatch.setattr(module, "precision", lambda _: "tf32x3")
    monkeypatch.setattr(attention, "processors", lambda _: 132)
    beside: TorchDispatchMode = _Beside()  # type: ignore[no-untyped-call]  # torch's own is not typed
    with beside:
        yield found


def compile_launch(launch: Launch, capability: int) -> int:
    """Compile a launch for a compute capability -> the bytes of shared memory that it takes."""
    import triton  # noqa: PLC0415 -- where Triton is installed
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = launch.kernel.arg_names
    source = ASTSource(
        fn=launch.kernel,
        signature={name: launch.types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in launch.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.divisible},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))
    return int(compiled.metadata.shared)
