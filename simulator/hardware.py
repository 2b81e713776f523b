"""Accelerators as the cost model sees them: dense peaks, memory, and the efficiency that kernels reach."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from fsm_spec.simulator import catalogue
from fsm_spec.simulator.curve import Curve

Points = tuple[tuple[float, float], ...]


class Linear(BaseModel):
    """Describe kernels of linear layers: each takes start_us + (memory^overlap + compute^overlap)^(1/overlap)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_us: float = Field(ge=0, description="time of a kernel with nothing to do")
    mbu: float = Field(gt=0, le=1, description="share of the bandwidth at which weights are read")
    overlap: float = Field(ge=1, description="1: compute and memory add up; large: the longer one counts")
    mfu: Points = Field(description="(rows, share of the peak)")


# Where no kernel times are published: the middle of the measured accelerators of the catalogue.
DEFAULT_BF16_LINEAR = Linear(start_us=4.0, mbu=0.8, overlap=2.5, mfu=((256.0, 0.7), (1024.0, 0.75)))
DEFAULT_FP8_LINEAR = Linear(start_us=4.0, mbu=0.8, overlap=2.0, mfu=((256.0, 0.7), (1024.0, 0.7)))
DEFAULT_FP8_BLOCK_LINEAR = Linear(start_us=7.0, mbu=0.8, overlap=1.3, mfu=((256.0, 0.6), (1024.0, 0.6)))
DEFAULT_DECODE_MBU = ((1024.0, 0.06), (16384.0, 0.45), (65536.0, 0.7), (262144.0, 0.85))
DEFAULT_PREFILL_MFU = ((512.0, 0.07), (2048.0, 0.25), (8192.0, 0.5))

LINEAR_FIELDS = {"bf16": "bf16_gemm", "fp8": "fp8_gemm", "fp8-block": "fp8_block_gemm"}
DEFAULTED = (*LINEAR_FIELDS.values(), "decode_attention_mbu", "prefill_attention_mfu", "all_reduce_us")
DEFAULT_SOURCE = "default of the cost model: middle of the measured accelerators"


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
    bf16_gemm: Linear = Field(default=DEFAULT_BF16_LINEAR, description="linear layers in bf16")
    fp8_gemm: Linear = Field(
        default=DEFAULT_FP8_LINEAR, description="linear layers in fp8 with static scales"
    )
    fp8_block_gemm: Linear = Field(
        default=DEFAULT_FP8_BLOCK_LINEAR, description="linear layers in fp8 with a scale for each block"
    )
    decode_attention_mbu: Points = Field(
        default=DEFAULT_DECODE_MBU,
        description="(batch x context of 4,096 bytes a layer, share of the bandwidth)",
    )
    prefill_attention_mfu: Points = Field(
        default=DEFAULT_PREFILL_MFU,
        description="(tokens of one causal prefill of 32 heads, share of the bf16 peak)",
    )
    all_reduce_us: dict[int, Points] = Field(
        default_factory=dict,
        description="by number of accelerators: (bytes, us) of one all-reduce; none: a ring at the link's speed",
    )
    sources: dict[str, str] = Field(default_factory=dict, description="field -> where its number comes from")

    @property
    def hbm_bytes(self) -> int:
        """Return the memory in bytes: a 24 GB card reports 23.5 x 2^30 bytes, an 80 GB one 79.6 x 2^30."""
        return int(self.hbm_gb * 2**30)

    def efficiency(self) -> Efficiency:
        """Return what kernels of this accelerator reach."""
        return Efficiency(
            linear={kind: getattr(self, field) for kind, field in LINEAR_FIELDS.items()},
            decode_attention_mbu=Curve.of(self.decode_attention_mbu, below="latency"),
            # Causal work grows with the square of the tokens, so its share may grow with their square too.
            prefill_attention_mfu=Curve.of(self.prefill_attention_mfu, power=2.0),
            all_reduce={
                count: self._link_share(count, points) for count, points in self.all_reduce_us.items()
            },
        )

    def _link_share(self, count: int, points: Points) -> Curve:
        """Turn times of an all-reduce into shares of the time of a ring over the link."""
        ring = 2 * (count - 1) / count / (self.link_gb_s * 1e3)
        return Curve.of([(size, min(1.0, size * ring / us)) for size, us in points], below="latency")


class Efficiency(BaseModel):
    """Hold what kernels reach; `ideal` is the bare roofline."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    linear: dict[str, Linear] = Field(description="by the kind of kernel: bf16, fp8, fp8-block")
    decode_attention_mbu: Curve
    prefill_attention_mfu: Curve
    all_reduce: dict[int, Curve] = Field(
        default_factory=dict, description="shares of a ring's speed, by count"
    )

    @classmethod
    def ideal(cls) -> Efficiency:
        """Return an efficiency of one everywhere."""
        one = Curve.constant(1.0)
        linear = Linear(start_us=0.0, mbu=1.0, overlap=64.0, mfu=((1.0, 1.0),))
        return cls(
            linear=dict.fromkeys(LINEAR_FIELDS, linear), decode_attention_mbu=one, prefill_attention_mfu=one
        )

    def reduce_curve(self, count: int) -> Curve | None:
        """Return the all-reduce of that many accelerators, or of the nearest number that was measured."""
        if not self.all_reduce:
            return None
        return self.all_reduce[min(self.all_reduce, key=lambda known: (abs(known - count), -known))]


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
    """Split [value, source] pairs and mappings with a source of one entry into values and their sources."""
    values: dict[str, Any] = {"name": name, "title": entry["title"]}
    origin: dict[str, str] = {}
    for field, pair in entry.items():
        if isinstance(pair, dict):
            rest = {key: value for key, value in pair.items() if key != "source"}
            values[field], origin[field] = rest.get("points", rest), sources[pair["source"]]
        elif field not in {"title", "aliases"}:
            values[field], origin[field] = pair[0], sources[pair[1]]
    for field in DEFAULTED:
        origin.setdefault(field, DEFAULT_SOURCE)
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
