"""Where the resident runner runs: what differs between a GPU and its double on the CPU.

Both answer the same calls, so that everything above them is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.errors import UserError
from fsm_spec.executor.device.tape import CaptureRefused, Tape

Numbers = NDArray[np.int64]
Call = Callable[[], list[Tensor]]
# Triton's generated code, and the wheels of torch that carry it, start at these.
_LEAST_CAPABILITY = (8, 0)
_WARM_UPS = 2


@dataclass(frozen=True)
class Graph:
    """Hold a captured call: `replay` runs it, `outputs` are the tensors it writes."""

    replay: Callable[[], None]
    outputs: list[Tensor]


class Place(Protocol):
    """Be what a runner needs of a device besides its tensors."""

    device: torch.device
    graphs: bool

    def active(self) -> AbstractContextManager[None]:
        """Launch on this device what is inside; a thread begins with the first one."""

    def constant(self, values: NDArray[Any]) -> Tensor:
        """Make a tensor that never changes."""

    def upload(self, numbers: Numbers) -> Tensor:
        """Copy integers to the device, in the order of its work."""

    def download(self, packed: Tensor) -> Callable[[], Numbers]:
        """Begin to copy integers to the host, behind the work so far; the call waits for them."""

    def capture(self, call: Call) -> Graph:
        """Capture a call that reads and writes the same tensors each time; raises CaptureRefused."""

    def spare_bytes(self) -> int | None:
        """Tell how much memory is free; None where that is not known."""


class CpuPlace:
    """Run on the CPU; with `graphs`, calls are recorded on tapes, as a GPU captures graphs."""

    def __init__(self, *, graphs: bool = False) -> None:
        self.device = torch.device("cpu")
        self.graphs = graphs

    def active(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def constant(self, values: NDArray[Any]) -> Tensor:
        """Copy values."""
        return torch.from_numpy(values.copy())

    def upload(self, numbers: Numbers) -> Tensor:
        """Copy integers."""
        return torch.from_numpy(numbers.copy())

    def download(self, packed: Tensor) -> Callable[[], Numbers]:
        """Copy integers."""
        numbers: Numbers = packed.numpy().copy()
        return lambda: numbers

    def capture(self, call: Call) -> Graph:
        """Record a call on a tape."""
        for _ in range(_WARM_UPS):
            call()
        tape = Tape()
        outputs = tape.record(call)
        return Graph(tape.replay, outputs)

    def spare_bytes(self) -> int | None:
        """Give None: a CPU shares its memory with all else."""
        return None


class CudaPlace:
    """Run on a GPU of CUDA: pinned buffers, one stream, graphs that share a pool of memory."""

    def __init__(self, device: torch.device) -> None:
        # With its number, as tensors name it.
        self.device = torch.device("cuda", device.index or 0)
        self.graphs = True
        self._pool = torch.cuda.graph_pool_handle()
        # One for all captures: for each stream cuBLAS keeps a workspace, on Hopper of 32 MB.
        self._side = torch.cuda.Stream(self.device)

    def __reduce__(self) -> tuple[type[CudaPlace], tuple[torch.device]]:
        """Travel to another process as the name of a device."""
        return type(self), (self.device,)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Launch on this device what is inside: Triton and events ask for the device of the thread."""
        with torch.cuda.device(self.device):
            yield

    def constant(self, values: NDArray[Any]) -> Tensor:
        """Copy values to the device."""
        return torch.from_numpy(values.copy()).to(self.device)

    def upload(self, numbers: Numbers) -> Tensor:
        """Copy integers from pinned memory, without a wait."""
        return torch.from_numpy(numbers.copy()).pin_memory().to(self.device, non_blocking=True)

    def download(self, packed: Tensor) -> Callable[[], Numbers]:
        """Copy integers to pinned memory; the call waits for that copy alone, not for work behind it."""
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> Numbers:
            done.synchronize()
            numbers: Numbers = host.numpy()
            return numbers

        return wait

    def capture(self, call: Call) -> Graph:
        """Capture a CUDA graph; raises CaptureRefused, and UserError where its memory is missing.

        What kernels are compiled and which libraries wake is the warm-ups' affair: neither may happen in a capture.
        """
        present = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        try:
            self._side.wait_stream(present)
            with torch.cuda.stream(self._side):
                for _ in range(_WARM_UPS):
                    call()
            present.wait_stream(self._side)
            # Other threads may wait for the device meanwhile. The outer block brings the stream back where the inner
            # one fails at its end, as a capture does that was refused.
            with (
                torch.cuda.stream(present),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
                ),
            ):
                outputs = call()
        except RuntimeError as error:
            first = _first(error)
            if isinstance(first, torch.OutOfMemoryError):
                raise UserError(
                    "graphs need more memory than the device has left; lower --pages, or let fewer requests run"
                ) from None
            # What is left of the pool is of a capture that never ended.
            self._pool = torch.cuda.graph_pool_handle()
            raise CaptureRefused(str(first).partition("\n")[0]) from None
        return Graph(graph.replay, outputs)

    def spare_bytes(self) -> int | None:
        """Tell how much memory is free."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free)


def _first(error: BaseException) -> BaseException:
    """Give what went wrong first: the end of a failed capture only says that it failed."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def find_place(wanted: str, *, graphs: bool = False) -> Place:
    """Give the device of that name, `cpu` or `cuda`; `graphs` records tapes on a CPU.

    Raises UserError where there is no such device, or none that this build of torch can use.
    """
    if wanted == "cpu":
        return CpuPlace(graphs=graphs)
    device = torch.device(wanted)
    if torch.version.cuda is None:
        raise UserError(
            f"--device {wanted}: this torch {torch.__version__} was built without CUDA; install a CUDA build "
            "(pip install torch, without the CPU index), or run with --device cpu"
        )
    if not torch.cuda.is_available():
        raise UserError(f"--device {wanted}: {_why_not()}, or run with --device cpu")
    if (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {wanted}: there are {torch.cuda.device_count()} CUDA devices, numbered from 0; "
            "name one of them"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise UserError(
            f"--device {wanted}: {name} has compute capability {capability[0]}.{capability[1]}, and the kernels "
            f"need {_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]} (Ampere) or later; run with --device cpu"
        )
    return CudaPlace(device)


def _why_not() -> str:
    """Say why a build with CUDA finds no GPU: its own words name a driver that is too old."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        if "too old" in said:
            return f"{said}; update the NVIDIA driver"
        return f"no GPU can be used ({said}); check that nvidia-smi lists one"
    return "no GPU is visible; check CUDA_VISIBLE_DEVICES and that nvidia-smi lists one"


def require_bytes(place: Place, needed: int, what: str, knob: str) -> None:
    """Raise UserError where a device has too little memory: how much is missing, and what to turn down."""
    free = place.spare_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{what} needs {needed / 2**30:.1f} GiB and the device has {free / 2**30:.1f} GiB free: "
            f"{(needed - free) / 2**30:.1f} GiB are missing; {knob}"
        )
