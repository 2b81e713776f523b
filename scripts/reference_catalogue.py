"""The reference page of accelerators and models that ship with the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from reference_page import page, table

from fsm_spec.simulator.hardware import LINEAR_FIELDS, Hardware, Linear, hardware_names, load_hardware
from fsm_spec.simulator.model import load_model, model_names


def catalogue() -> str:
    """List the accelerators and models that ship with the simulator, and where their numbers come from."""
    hardware = [load_hardware(name) for name in hardware_names()]
    fields = ("bf16_tflops", "fp8_tflops", "hbm_gb_s", "hbm_gb", "watts", "link_gb_s")
    peaks = [
        [f"`{each.name}`", each.title, *(f"{getattr(each, field) or 0:g}" for field in fields)]
        for each in hardware
    ]
    head = ["name", "sold as", "bf16 TFLOPS", "fp8 TFLOPS", "memory GB/s", "memory GB", "W", "link GB/s"]
    return page(
        "Catalogue",
        "What `fsm-spec simulate` knows by name; case and the marks `-`, `_`, `.` do not matter.",
        "[Simulating](../guides/simulate.md) says how these numbers are used and what they are worth.\n",
        "## Accelerators\n\nDense peaks; 0 stands for units that are not there.\n",
        table(head, peaks),
        "## What kernels reach\n",
        f"{Linear.__doc__}\n" if Linear.__doc__ else "",
        "Between two points a share is a power law; above the last it stays.\n",
        *(_linear(field, hardware) for field in LINEAR_FIELDS.values()),
        *(_curves(field, hardware) for field in ("decode_attention_mbu", "prefill_attention_mfu")),
        _reductions(hardware),
        "## Sources\n",
        *(_sources(each) for each in hardware),
        "## Models\n",
        table(["name", "parameters", "layers", "hidden", "KV bytes a token", "context", "source"], _models()),
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    """Write the points of a curve."""
    return ", ".join(f"{x:g}: {y:g}" for x, y in points)


def _linear(field: str, hardware: list[Hardware]) -> str:
    """List the kernels of linear layers of all accelerators."""
    rows = []
    for each in hardware:
        kernels = getattr(each, field)
        numbers = (f"{kernels.start_us:g}", f"{kernels.mbu:g}", f"{kernels.overlap:g}")
        rows.append([f"`{each.name}`", *numbers, _points(kernels.mfu)])
    head = ["name", "start_us", "mbu", "overlap", "mfu by rows"]
    return f"### {field}\n\n{Hardware.model_fields[field].description}\n\n{table(head, rows)}"


def _reductions(hardware: list[Hardware]) -> str:
    """List the measured all-reduces."""
    rows = [
        [f"`{each.name}`", str(count), _points(points)]
        for each in hardware
        for count, points in each.all_reduce_us.items()
    ]
    about = Hardware.model_fields["all_reduce_us"].description
    return f"### all_reduce_us\n\n{about}\n\n{table(['name', 'accelerators', 'us by bytes'], rows)}"


def _curves(field: str, hardware: list[Hardware]) -> str:
    rows = [[f"`{each.name}`", _points(getattr(each, field))] for each in hardware]
    return f"### {field}\n\n{Hardware.model_fields[field].description}\n\n{table(['name', 'points'], rows)}"


def _sources(hardware: Hardware) -> str:
    rows = [[f"`{field}`", source] for field, source in sorted(hardware.sources.items())]
    return f"### {hardware.name}\n\n{table(['number', 'source'], rows)}"


def _models() -> list[list[str]]:
    rows = []
    for name in model_names():
        shape = load_model(name)
        counts = (shape.parameters, shape.num_hidden_layers, shape.hidden_size, shape.kv_bytes())
        context = f"{shape.max_position_embeddings:,}" if shape.max_position_embeddings else ""
        rows.append([f"`{name}`", *(f"{count:,}" for count in counts), context, shape.source])
    return rows
