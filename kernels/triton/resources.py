"""Compile a kernel for a target that need not be there, and read what it takes of a multiprocessor.

Works in a process without Triton's interpreter; no GPU and no driver are asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fsm_spec.kernels.triton.launch import Specialisation

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_FOLDER = Path(__file__).parent
# ptxas and cuobjdump come with Triton's wheel.
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# An AMD compute unit has 64 KB of shared memory, a third of what the others have.
_MOST_STAGES = {"hip": 2}


@dataclass(frozen=True)
class Resources:
    """Hold what one compiled kernel takes: registers a thread, bytes a program."""

    registers: int
    stack: int
    """Bytes of stack a thread: arrays and spilled registers"""
    spills: int
    """Vector registers spilled (AMD), or bytes of local memory (NVIDIA)"""
    scalar_spills: int
    """Scalar registers spilled into vector registers (AMD)"""
    shared: int
    """Bytes of shared memory"""
    narrow_loads: int
    """Loads of a thread from global memory of less than 4 bytes: a row read by them takes several times as long"""


def forms() -> Iterator[tuple[str, Specialisation]]:
    """Yield (name, form) of all that the kernel files list under SPECIALISATIONS."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules([str(_FOLDER)]):
        module = importlib.import_module(f"{package}.{info.name}")
        for form in getattr(module, "SPECIALISATIONS", ()):
            yield f"{form.kernel.__name__}: {form.name}", form


def digest_of_sources() -> str:
    """Say which kernels a report is about: a digest of the files that they are written in."""
    whole = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.py")):
        whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def compile_for(form: Specialisation, target: str) -> Resources:
    """Compile one form of a kernel for a target of `TARGETS` and read its resources."""
    device = TARGETS[target]
    constants = dict(form.constants)
    if device.backend == "hip" and "PRECISION" in constants:
        constants["PRECISION"] = "ieee"  # as `launch.precision` says
    names = form.kernel.arg_names
    variable = [name for name in names if name not in constants]
    types = dict(zip(variable, form.types.split(), strict=True))
    source = ASTSource(
        fn=form.kernel,
        signature={name: types[name].partition(":")[0] if name in types else "constexpr" for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.endswith(":16")
        },
    )
    stages = min(form.stages, _MOST_STAGES.get(device.backend, form.stages))
    compiled = triton.compile(source, target=device, options={"num_warps": form.warps, "num_stages": stages})
    shared = int(compiled.metadata.shared)
    return (
        _of_amd(compiled.asm["amdgcn"], shared)
        if device.backend == "hip"
        else _of_nvidia(compiled.asm["cubin"], shared)
    )


def _of_nvidia(binary: bytes, shared: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told, code = (
            subprocess.run(  # noqa: S603 -- the tool of the installed wheel
                [_TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told)
    assert found, f"cuobjdump says {told!r}"
    registers, stack, local = map(int, found.groups())
    narrow = len(re.findall(r"\bLDG\.[A-Z0-9.]*\b[SU](?:8|16)\b", code))
    return Resources(registers, stack, local, 0, shared, narrow)


def _of_amd(assembly: str, shared: int) -> Resources:
    def read(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        assert found, f"the assembly has no .{name}"
        return int(found[1])

    return Resources(
        read("vgpr_count"),
        read("private_segment_fixed_size"),
        read("vgpr_spill_count"),
        read("sgpr_spill_count"),
        shared,
        len(re.findall(r"\b(?:global|buffer)_load_[su](?:byte|short)", assembly)),
    )
