"""Options of an engine that `generate` and `serve` take alike: each declared once, in its group of `--help`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.executor.attention_option import Attention
from fsm_spec.executor.quantization_option import Quantization
from fsm_spec.executor.threads import MOST_THREADS

DEFAULT_MODEL: Final = "smollm2-135m"
# Headings of `--help`.
MODEL: Final = "Model"
MACHINE: Final = "Machine"
SCHEDULER: Final = "Scheduler and KV pool"
SYNTHETIC: Final = "Synthetic acceptance"


class Dtype(StrEnum):
    """Name the number formats of weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Device(StrEnum):
    """Name where a model runs; `auto` takes a GPU where torch finds one."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


ModelPlace = Annotated[
    str, typer.Option(help="A model folder, a GGUF file, or a fetched model.", rich_help_panel=MODEL)
]
AdapterPlace = Annotated[
    Path | None,
    typer.Option(
        help="Draft adapter in PEFT's layout; by default the one in the model's folder, else none.",
        rich_help_panel=MODEL,
    ),
]
DraftPlaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FOLDER",
        help="Draft model of that name in the spec: a folder, layers:N for the target's first layers, or random.",
        rich_help_panel=MODEL,
    ),
]
MaskId = Annotated[
    int | None,
    typer.Option(
        help="Token on mask rows; the model's mask token, else its first unused special token.",
        rich_help_panel=MODEL,
    ),
]
Rounding = Annotated[
    Quantization,
    typer.Option(help="What weights are rounded to at load; int8 on a CPU only.", rich_help_panel=MODEL),
]
OnDevice = Annotated[
    Device,
    typer.Option(help="Where the model runs; auto takes a GPU where there is one.", rich_help_panel=MACHINE),
]
Resident = Annotated[
    bool,
    typer.Option(
        "--resident",
        help="On a CPU: keep requests in tensors and run rounds as a GPU does.",
        rich_help_panel=MACHINE,
    ),
]
RequireGraphs = Annotated[
    bool,
    typer.Option(
        "--require-graphs", help="Fail where a phase runs without a graph.", rich_help_panel=MACHINE
    ),
]
SyntheticAcceptance = Annotated[
    str | None,
    typer.Option(
        metavar="RATES",
        help="For measuring: draw how many drafts stand by these chances, as simulate's --accept does.",
        rich_help_panel=SYNTHETIC,
    ),
]
SyntheticUnmasking = Annotated[
    str | None,
    typer.Option(
        metavar="RATES",
        help="For measuring: draw how many masks a pass fills beyond the surest, as simulate's --unmask does.",
        rich_help_panel=SYNTHETIC,
    ),
]
PageSize = Annotated[
    int, typer.Option(help="Token slots a page.", min=1, max=4096, rich_help_panel=SCHEDULER)
]
AttentionBy = Annotated[
    Attention,
    typer.Option(
        help="What computes attention: torch on a CPU, Triton on a GPU by default.", rich_help_panel=MACHINE
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of torch; by default OMP_NUM_THREADS, else as many as there are idle cores.",
        min=1,
        max=MOST_THREADS,
        rich_help_panel=MACHINE,
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        help="Processes that share the model's heads and feed-forward.",
        min=1,
        max=64,
        rich_help_panel=MACHINE,
    ),
]
