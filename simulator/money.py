"""What tokens cost: money from a price of accelerators, and energy from what they were busy with."""

from __future__ import annotations

from fsm_spec.simulator.hardware import Hardware

# An accelerator that waits draws a part of its limit: average over peak power of decoding Llama-2-70B is about 0.74
# (Splitwise, perf_model.csv), and idle boards draw about a tenth.
IDLE_SHARE = 0.1


def price_fault(price_per_gpu_hour: float | None) -> str | None:
    """Say what is wrong with a price that somebody gave; None where nothing is."""
    if price_per_gpu_hour is None or price_per_gpu_hour > 0:
        return None
    return f"--price-per-gpu-hour {price_per_gpu_hour:g} is no price above 0; leave it out or mend it"


def price_per_million(price_per_gpu_hour: float, tokens_per_second_gpu: float) -> float | None:
    """Return the price of a million emitted tokens; None where none was emitted."""
    if tokens_per_second_gpu <= 0:
        return None
    return round(price_per_gpu_hour / 3600 / tokens_per_second_gpu * 1e6, 6)


def energy_joules(hardware: Hardware, gpus: int, duration_s: float, busy_s: float, full_s: float) -> float:
    """Return an estimate of the energy of a run.

    Power goes from idle to the board's limit with the share of the time at a ceiling (`full_s` of compute or memory at
    its peak); what is busy below its ceilings draws the mean of both. An upper estimate where clocks are lowered.
    """
    idle = IDLE_SHARE * hardware.watts
    half = max(0.0, busy_s - full_s)
    return gpus * (idle * duration_s + (hardware.watts - idle) * (full_s + half / 2))
