"""The option that chooses how attention is computed, as `generate` and `serve` take it."""

from __future__ import annotations

from enum import StrEnum

from fsm_spec.errors import UserError


class Attention(StrEnum):
    """Name the backends of attention, as `kernels/backends.py` does."""

    auto = "auto"
    flashinfer = "flashinfer"
    triton = "triton"
    torch = "torch"


def require_attention(wanted: str, device: str, page_size: int) -> None:
    """Raise UserError where a backend does not run on a device of this type, cpu or cuda, or takes no such pages."""
    from fsm_spec.kernels.backends import AUTO, missing  # noqa: PLC0415 -- imports torch

    fault = missing(wanted, device, page_size)
    if fault is not None:
        other = "give --attention torch" if wanted == AUTO else "leave it out, or give torch"
        raise UserError(f"--attention {wanted} {fault}; {other}")
