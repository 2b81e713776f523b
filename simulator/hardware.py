"""Accelerators as the cost model sees them: dense peaks, memory, and the efficiency that kernels reach."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from fsm_spec.simulator import catalogue
from fsm_spec.simulator.curve import Curve

# Where no kernel times are published: BLIS's rule of thumb is 60 to 85 % of bandwidth for tuned stacks,
# AIConfigurator's empirical mode takes 0.8 of it; the compute shares are the middle of the measured rows of
# the catalogue.
DEFAULT_GEMM_MFU = ((256.0, 0.6), (1024.0, 0.75))
DEFAULT_FP8_MFU = ((512.0, 0.5), (8192.0, 0.6))
DEFAULT_GEMM_MBU = ((1.0, 0.75),)
DEFAULT_DECODE_MBU = ((1024.0, 0.07), (32768.0, 0.6), (131072.0, 0.8))
DEFAULT_PREFILL_MFU = ((512.0, 0.1), (2048.0, 0.35), (8192.0, 0.5))

DEFAULT_CURVES = {
    "bf16_gemm_mfu": DEFAULT_GEMM_MFU,
    "fp8_gemm_mfu": DEFAULT_FP8_MFU,
    "gemm_mbu": DEFAULT_GEMM_MBU,
    "decode_attention_mbu": DEFAULT_DECODE_MBU,
    "prefill_attention_mfu": DEFAULT_PREFILL_MFU,
}

Points = tuple[tuple[float, float], ...]


class Hardware(BaseModel):
    """Describe one accelerator; `sources` says where each number comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="name in the catalogue")
    title: str = Field(description="name as sold")
    bf16_tflops: float = Field(gt=0, description="dense bf16 peak, TFLOPS")
    fp8_tflops: float | None = Field(
        default=None, gt=0, description="dense fp8 peak, TFLOPS; none: no fp8 units"
    )
    hbm_gb_s: float = Field(gt=0, description="memory bandwidth, 10^9 bytes a second")
    hbm_gb: float = Field(gt=0, description="memory as sold; sellers' GB are 2^30 bytes")
    watts: float = Field(gt=0, description="board power limit, W")
    link_gb_s: float = Field(
        gt=0, description="bandwidth to a neighbour in the node, one direction, 10^9 bytes a second"
    )
    bf16_gemm_mfu: Points = Field(default=DEFAULT_GEMM_MFU, description="(rows, share of the bf16 peak)")
    fp8_gemm_mfu: Points = Field(default=DEFAULT_FP8_MFU, description="(rows, share of the fp8 peak)")
    gemm_mbu: Points = Field(default=DEFAULT_GEMM_MBU, description="(rows, share of the bandwidth)")
    decode_attention_mbu: Points = Field(
        default=DEFAULT_DECODE_MBU,
        description="(batch x context of 4,096 bytes a layer, share of the bandwidth)",
    )
    prefill_attention_mfu: Points = Field(
        default=DEFAULT_PREFILL_MFU, description="(tokens of one causal prefill, share of the bf16 peak)"
    )
    sources: dict[str, str] = Field(default_factory=dict, description="field -> where its number comes from")

    @property
    def hbm_bytes(self) -> int:
        """Return the memory in bytes: a 24 GB card reports 23.5 x 2^30 bytes, an 80 GB one 79.6 x 2^30."""
        return int(self.hbm_gb * 2**30)

    def efficiency(self) -> Efficiency:
        """Return the efficiency curves of this accelerator."""
        return Efficiency(
            gemm_mfu={"bf16": Curve.of(self.bf16_gemm_mfu), "fp8": Curve.of(self.fp8_gemm_mfu)},
            gemm_mbu=Curve.of(self.gemm_mbu).falling(),
            decode_attention_mbu=Curve.of(self.decode_attention_mbu, below="latency"),
            # Causal work grows with the square of the tokens, so its share may grow with their square too.
            prefill_attention_mfu=Curve.of(self.prefill_attention_mfu, power=2.0),
        )


class Efficiency(BaseModel):
    """Hold the shares of the peaks that kernels reach; `ideal` is the bare roofline."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    gemm_mfu: dict[str, Curve] = Field(description="by the number format of the units: bf16, fp8")
    gemm_mbu: Curve
    decode_attention_mbu: Curve
    prefill_attention_mfu: Curve

    @classmethod
    def ideal(cls) -> Efficiency:
        """Return an efficiency of one everywhere."""
        one = Curve.constant(1.0)
        return cls(
            gemm_mfu={"bf16": one, "fp8": one},
            gemm_mbu=one,
            decode_attention_mbu=one,
            prefill_attention_mfu=one,
        )


@cache
def _catalogue() -> dict[str, Hardware]:
    """Read the shipped accelerators, in the order of the file."""
    document = _document()
    return {name: _read(name, entry, document["sources"]) for name, entry in document["gpus"].items()}


@cache
def _document() -> dict[str, Any]:
    """Read the shipped file once; nobody changes what it gives."""
    text = catalogue.folder().joinpath("hardware.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def _read(name: str, entry: dict[str, Any], sources: dict[str, str]) -> Hardware:
    """Split [value, source] pairs and curves of one entry into values and their sources."""
    values: dict[str, Any] = {"name": name, "title": entry["title"]}
    origin: dict[str, str] = {}
    for field, pair in entry.items():
        if isinstance(pair, dict):
            values[field], origin[field] = pair["points"], sources[pair["source"]]
        elif field not in {"title", "aliases"}:
            values[field], origin[field] = pair[0], sources[pair[1]]
    for field in sorted(DEFAULT_CURVES.keys() - values.keys()):
        origin[field] = "default of the cost model: middle of the measured accelerators"
    return Hardware.model_validate({**values, "sources": origin})


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    """Return the other spellings of each accelerator."""
    return {name: tuple(entry.get("aliases", ())) for name, entry in _document()["gpus"].items()}


def hardware_names() -> list[str]:
    """Return the names of the shipped accelerators."""
    return list(_catalogue())


def load_hardware(name: str) -> Hardware:
    """Return the accelerator called `name`, in any case and with any of `-`, `_`, `.` between its words.

    Raises UserError with the nearest right names.
    """
    return _catalogue()[catalogue.find(name, _aliases(), "hardware")]
