"""Measured kernel times in the form of LLMServingSim's tables, laid out for `roofline.py` in place of fitted curves.

Three CSV files with a common prefix: `PREFIX_dense.csv` (layer,tokens,time_us), `PREFIX_per_sequence.csv`
(layer,sequences,time_us) and `PREFIX_attention.csv` (prefill_chunk,kv_prefill,n_decode,kv_decode,time_us).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError

# Kernels that run once in each layer, how often; those that run once in a forward.
LAYER_KERNELS = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
FORWARD_KERNELS = ("embedding", "final_layernorm")
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
FILES = {
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "attention": (*AXES, "time_us"),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KernelTable:
    """Hold measured times in ns of whole forwards: dense layers by tokens, head and sampler by sequences, attention.

    Each curve is (amounts, times); attention has four axes and one layer's times.
    """

    dense: tuple[Floats, Floats]
    head: tuple[Floats, Floats]
    sampler: tuple[Floats, Floats]
    axes: tuple[Floats, ...]
    attention: Floats

    def packed(self) -> Floats:
        """Return all numbers in a row as `roofline.py` reads them: for each curve its length, amounts and times."""
        parts: list[Floats] = []
        for amounts, times in (self.dense, self.head, self.sampler):
            parts += [np.array([len(amounts)], np.float64), amounts, times]
        for axis in self.axes:
            parts += [np.array([len(axis)], np.float64), axis]
        return np.concatenate([*parts, self.attention.reshape(-1)])


def load_kernel_table(prefix: str, layers: int) -> KernelTable:
    """Read the three files for a model of so many layers; raises UserError with the line."""
    rows = {kind: _read(Path(f"{prefix}_{kind}.csv"), columns) for kind, columns in FILES.items()}
    dense, single = (_by_layer(rows[kind]) for kind in ("dense", "per_sequence"))
    missing = [name for name in (*LAYER_KERNELS, *FORWARD_KERNELS) if name not in dense]
    missing += [name for name in ("lm_head", "sampler") if name not in single]
    if missing:
        raise UserError(f"{prefix}: the tables lack the kernels {', '.join(missing)}; give complete ones")
    amounts = np.array(sorted(dense["qkv_proj"]), np.float64)
    total = np.zeros(len(amounts))
    for name, times in ((name, _at(dense[name], amounts)) for name in LAYER_KERNELS):
        total += layers * LAYER_KERNELS[name] * times
    for name in FORWARD_KERNELS:
        total += _at(dense[name], amounts)
    axes, attention = _grid(rows["attention"])
    return KernelTable(
        (amounts, total), _curve(single["lm_head"]), _curve(single["sampler"]), axes, attention
    )


def _read(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != tuple(columns):
                raise UserError(f"{path}:1: the first line is not {','.join(columns)}; give a kernel table")
            rows = []
            for fields in reader:
                numbers = fields[1:] if columns[0] == "layer" else fields
                if len(fields) != len(columns) or not all(_is_time(word) for word in numbers):
                    raise UserError(f"{path}:{reader.line_num}: is no line of {','.join(columns)}; mend it")
                rows.append(tuple(fields))
            return rows
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the common prefix of three kernel tables"
        ) from error


def _is_time(word: str) -> bool:
    try:
        return 0 <= float(word) < math.inf
    except ValueError:
        return False


def _by_layer(rows: list[tuple[str, ...]]) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for layer, amount, us in rows:
        found.setdefault(layer, {})[float(amount)] = float(us) * 1e3
    return found


def _curve(times: dict[float, float]) -> tuple[Floats, Floats]:
    amounts = sorted(times)
    # A larger amount never takes less time, whatever the noise of one measurement.
    return np.array(amounts), np.maximum.accumulate(np.array([times[amount] for amount in amounts]))


def _at(times: dict[float, float], amounts: Floats) -> Floats:
    known, values = _curve(times)
    return np.asarray(np.interp(amounts, known, values), np.float64)


def _grid(rows: list[tuple[str, ...]]) -> tuple[tuple[Floats, ...], Floats]:
    """Lay the attention times on their grid; where one is missing, its nearest smaller neighbour's is scaled up."""
    known = {tuple(float(word) for word in row[:4]): float(row[4]) * 1e3 for row in rows}
    known[0.0, 0.0, 0.0, 0.0] = 0.0
    axes = tuple(np.array(sorted({key[axis] for key in known})) for axis in range(len(AXES)))
    grid = np.zeros([len(axis) for axis in axes])
    for place in product(*(range(len(axis)) for axis in axes)):
        key = tuple(float(axes[axis][index]) for axis, index in enumerate(place))
        # Without rows there is no context: a chunk of nothing, or no decoding request.
        key = (key[0], key[1] if key[0] else 0.0, key[2], key[3] if key[2] else 0.0)
        grid[place] = known[key] if key in known else _scaled(grid, axes, place)
    return axes, grid


def _scaled(grid: Floats, axes: tuple[Floats, ...], place: tuple[int, ...]) -> float:
    """Scale the largest time among the neighbours below by how much further the grid goes along their axis."""
    best = 0.0
    for axis, index in enumerate(place):
        if index > 0 and axes[axis][index - 1] > 0:
            before = grid[tuple(at - (which == axis) for which, at in enumerate(place))]
            best = max(best, float(before * axes[axis][index] / axes[axis][index - 1]))
    return best
