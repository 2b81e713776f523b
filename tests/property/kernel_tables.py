"""Small kernel tables of all kinds, with times that interpolation gives exactly."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from fsm_spec.simulator.kernel_table import FORWARD_KERNELS, LAYER_KERNELS

CHUNKS, BEFORE, DECODING, CONTEXT = (0, 64, 128), (0, 128), (0, 1, 4), (0, 256, 512)


def us_of(chunk: float, before: float, decoding: float, context: float) -> float:
    """Return the made-up time of an attention kernel, multilinear so that interpolation is exact."""
    return 10 * chunk + 0.1 * chunk * before + 5 * decoding + 0.02 * decoding * context


def write(folder: Path) -> str:
    """Write small tables of all three kinds and return their prefix."""
    prefix = folder / "tiny"
    dense = [
        f"{name},{tokens},{1000 + tokens}"
        for name in (*LAYER_KERNELS, *FORWARD_KERNELS)
        for tokens in (1, 101)
    ]
    single = [f"{name},{count},{500 + count}" for name in ("lm_head", "sampler") for count in (1, 11)]
    attention = [
        f"{chunk},{before},{decoding},{context},{us_of(chunk, before, decoding, context)}"
        for chunk, before, decoding, context in product(CHUNKS, BEFORE, DECODING, CONTEXT)
        if (chunk or not before) and (decoding or not context) and chunk + decoding
    ]
    for kind, head, lines in (
        ("dense", "layer,tokens,time_us", dense),
        ("per_sequence", "layer,sequences,time_us", single),
        ("attention", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention),
    ):
        Path(f"{prefix}_{kind}.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(prefix)
