"""ServeGen (arXiv 2505.09999): windows of a client's rate, variation and gap family, and histograms of lengths.

`NAME-trace.csv` has one line a window: start in seconds, requests a second, CV, family (Gamma, Weibull or none),
two parameters. `NAME-dataset.json` beside it maps the start of a longer window to histograms of tokens.
"""

from __future__ import annotations

import ast
import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator.arrivals import gaps
from fsm_spec.simulator.trace_file import SECOND_NS, Broken, TraceColumns, read_lines

EXAMPLE = "600,11.3,1.13,Gamma,0.78,0.045"
FAMILIES = {"Gamma": "gamma", "Weibull": "weibull"}
SUFFIX = "-trace.csv"
WINDOW_S = 600.0  # of the published clients; used where a trace has one window only

Window = tuple[float, float, float, str]  # start s, requests a second, CV of the gaps, family
Histograms = tuple[NDArray[np.int64], NDArray[np.float64]]


def is_window(line: str) -> bool:
    """Tell whether a first line is one of ServeGen's, which have no header."""
    fields = line.split(",")
    return len(fields) == 6 and fields[0].strip().isdigit() and fields[3].strip() in ("", *FAMILIES)


def read(path: Path, lines: list[str], most_tokens: int, *, requests: int | None, seed: int) -> TraceColumns:
    """Draw the requests of all windows with a rate, or the first `requests`; raises UserError with the line."""
    windows = _windows(path, lines)
    busy = [window for window in windows if window[1] > 0]
    if not busy:
        raise UserError(f"{path}: no window has a rate above 0; give a client with requests")
    lengths = _lengths(path, most_tokens)
    span = min((after[0] - before[0] for before, after in pairwise(windows)), default=WINDOW_S)
    times, prompts, outputs = (np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(3))
    starts = sorted(lengths)
    parts: list[NDArray[np.int64]] = []
    total = 0
    for start, rate, cv, family in busy:
        if requests is not None and total >= requests:
            break
        mean, count = 1.0 / rate, int(rate * span * 3) + 50
        offsets = np.cumsum(gaps(FAMILIES.get(family, "gamma"), mean, cv or 1.0, count, times))
        offsets = offsets[offsets < span]
        inputs, results = lengths[max((at for at in starts if at <= start), default=starts[0])]
        table = np.stack(
            [
                np.rint((start + offsets) * SECOND_NS).astype(np.int64),
                prompts.choice(inputs[0], len(offsets), p=inputs[1]),
                outputs.choice(results[0], len(offsets), p=results[1]),
            ]
        )
        parts.append(table)
        total += len(offsets)
    arrival, prompt, output = np.concatenate(parts, axis=1)
    none = np.zeros(0, np.int64)
    size = len(arrival)
    first = arrival[0] if size else 0
    return TraceColumns(
        arrival - first, prompt, output, np.full(size, -1, np.int64), none, np.zeros(size + 1, np.int64)
    )


def _windows(path: Path, lines: list[str]) -> list[Window]:
    """Read all windows."""
    windows: list[Window] = []
    reader = csv.reader(lines)
    try:
        for fields in reader:
            if fields:
                windows.append(_window(fields, windows))
    except (Broken, ValueError, csv.Error) as error:
        what = error if isinstance(error, Broken) else "is no window"
        raise UserError(
            f"{path}:{reader.line_num}: {what}; mend that line, which should look like {EXAMPLE}"
        ) from error
    return windows


def _window(fields: list[str], before: list[Window]) -> Window:
    if len(fields) != 6:
        raise Broken(f"has {len(fields)} fields instead of 6")
    start, rate, cv = (float(word) for word in fields[:3])
    family = fields[3].strip()
    if family not in ("", *FAMILIES) or not (np.isfinite(rate) and rate >= 0 and np.isfinite(cv) and cv >= 0):
        raise Broken("has a negative rate or CV, or an unknown family")
    if before and start <= before[-1][0]:
        raise Broken("its window does not start after that of the line above")
    # Families fit their windows within a factor; very large CVs have no Weibull shape that floats hold.
    return start, rate, min(cv, 20.0), family


def _lengths(path: Path, most_tokens: int) -> dict[float, tuple[Histograms, Histograms]]:
    """Read the histograms beside a trace, by the start of their windows; raises UserError."""
    if not path.name.endswith(SUFFIX):
        raise UserError(f"{path}: ServeGen windows need their lengths beside them; name it NAME{SUFFIX}")
    place = path.with_name(path.name.removesuffix(SUFFIX) + "-dataset.json")
    try:
        document: dict[str, dict[str, str]] = json.loads("\n".join(read_lines(place)))
        found = {
            float(start): (
                _histogram(entry["input_tokens"], most_tokens),
                _histogram(entry["output_tokens"], most_tokens),
            )
            for start, entry in document.items()
            if entry["input_tokens"] != "{}" and entry["output_tokens"] != "{}"
        }
    except (ValueError, KeyError, SyntaxError, TypeError, AttributeError) as error:
        raise UserError(
            f"{place}: does not map windows to histograms of input_tokens and output_tokens; give ServeGen's file"
        ) from error
    if not found:
        raise UserError(f"{place}: holds no histogram of lengths; give ServeGen's file")
    return found


def _histogram(text: str, most_tokens: int) -> Histograms:
    """Read `{tokens: share, ...}` as values and chances; lengths of 0 count as 1."""
    pairs: dict[Any, Any] = ast.literal_eval(text)
    values = np.clip(np.asarray([int(value) for value in pairs], dtype=np.int64), 1, most_tokens)
    chances = np.asarray([float(share) for share in pairs.values()], dtype=np.float64)
    return values, chances / chances.sum()
