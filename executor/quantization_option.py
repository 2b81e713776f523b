"""The option that rounds weights at load, as `generate` and `serve` take it."""

from __future__ import annotations

from enum import StrEnum

from fsm_spec.errors import UserError


class Quantization(StrEnum):
    """Name what weights are rounded to when a model is loaded."""

    none = "none"
    int8 = "int8"


def require_quantization(wanted: str, *, resident: bool, processes: int) -> None:
    """Raise UserError where rounded weights do not run: resident on a device, or cut over processes."""
    if wanted == Quantization.none:
        return
    if resident:
        raise UserError(
            f"--quantization {wanted} does not run where requests live on a device; leave out --resident, give no"
            " --device but cpu, or leave out --quantization"
        )
    if processes > 1:
        raise UserError(f"--quantization {wanted} runs in one process; leave out --tensor-parallel")
