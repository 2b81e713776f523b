"""The `budget` operator: how many drafts of each request are worth verifying, over all requests of a launch.

A draft's survival is the chance that it and all drafts before it are accepted. Verifying more of them emits more
tokens a step but makes the step longer; the expected throughput of a step is tokens a step times steps a second.
Losslessness holds these functions to one rule: whether draft k is verified must not depend on draft k itself.

Source: DSpark, algorithm 1 and appendix A. numpy only: the simulator and the executor call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]
Rate: TypeAlias = Callable[[Counts], Reals]
"""Steps a second of a launch with so many target rows, for an array of row counts."""

# Rounding of a product of confidences in float32 may raise it by this share.
_SLACK: Final = 1e-6


def table_rate(rows: Sequence[int], steps_per_second: Sequence[float]) -> Rate:
    """Return the rate of measured launches: between two sizes the time of a step grows evenly.

    `rows` ascending, both of one length. Below the first size the time is that of the first, beyond the last it grows
    with the rows. A rate in steps, as of launches padded to a few sizes, is what an early stop does badly with: it
    ends at the first step. Measure such launches at each size of the padding and at the next row.
    Raises ValueError for anything else.
    """
    sizes, rates = np.asarray(rows, dtype=np.int64), np.asarray(steps_per_second, dtype=np.float64)
    if not (
        len(sizes) == len(rates) > 0 and (np.diff(sizes) > 0).all() and sizes[0] > 0 and (rates > 0).all()
    ):
        raise ValueError("a cost table needs ascending row counts from 1, and as many rates above 0")

    def rate(asked: Counts) -> Reals:
        between = 1.0 / np.interp(asked, sizes, 1.0 / rates)
        return np.asarray(between * np.minimum(1.0, sizes[-1] / np.maximum(asked, 1)), dtype=np.float64)

    return rate


def grant(survival: Reals, rate: Rate | None, most: Counts | None = None) -> Counts:
    """Grant drafts in order of survival while the expected throughput rises -> int64 [n], each in 0..g.

    survival [n, g], along a row never rising; `most` int64 [n] bounds each request's drafts (g if not given).
    The launch holds one row a request and one a granted draft. Stops at the first draft that does not raise the
    throughput, also where a later one would: the later one's survival was computed from the draft in question, so
    to look at it would bias the output (the paper's counterexample gives 0.85 in place of 0.7).
    Ties go to the earlier draft, then to the earlier request. Without a rate nothing is trimmed.
    Raises ValueError for survivals that are no probabilities or rise along a row.
    """
    request, chances = _candidates(survival, most)
    if rate is None:
        return _counted(request, len(survival))
    throughput = _throughput(chances, len(survival), rate)
    falls = np.flatnonzero(throughput[1:] <= throughput[:-1])
    return _counted(request[: falls[0] if len(falls) else None], len(survival))


def best_total(survival: Reals, rate: Rate | None, most: Counts | None = None) -> int:
    """Return the number of drafts with the highest expected throughput of all, the least such number.

    To be computed from survivals of an earlier round only, two in DSpark's production form, and then given to
    `share`: looking past a dip is sound only if none of the drafts in question had a part in it.
    Inputs and errors as in `grant`.
    """
    _, chances = _candidates(survival, most)
    return len(chances) if rate is None else int(_throughput(chances, len(survival), rate).argmax())


def share(survival: Reals, total: int, most: Counts | None = None) -> Counts:
    """Grant the `total` drafts of highest survival -> int64 [n]; inputs, ties and errors as in `grant`."""
    request, _ = _candidates(survival, most)
    return _counted(request[: max(total, 0)], len(survival))


def _candidates(survival: Reals, most: Counts | None) -> tuple[Counts, Reals]:
    """Return (request, survival) of all drafts that may be granted, the likeliest first."""
    chances = np.asarray(survival, dtype=np.float64)
    # Written so that NaN fails too.
    if not ((chances >= 0) & (chances <= 1 + _SLACK)).all():
        raise ValueError("survival holds a number that is no probability; no draft is granted on it")
    if not (chances[:, 1:] <= chances[:, :-1] * (1 + _SLACK)).all():
        raise ValueError(
            "survival rises along a request's drafts; give the product of the confidences so far"
        )
    # What rounding has raised is no better than what stands before it: a request's drafts stay in order.
    chances = np.minimum.accumulate(chances, axis=1)
    count, width = chances.shape
    # By draft, then by request: the order in which a stable sort leaves ties.
    request, flat = np.tile(np.arange(count), width), chances.T.reshape(-1)
    if most is not None:
        within = np.repeat(np.arange(width), count) < np.asarray(most)[request]
        request, flat = request[within], flat[within]
    order = np.argsort(-flat, kind="stable")
    return request[order], flat[order]


def _throughput(chances: Reals, count: int, rate: Rate) -> Reals:
    """Return the expected tokens a second after 0, 1, ... granted drafts."""
    tokens = count + np.concatenate([[0.0], np.cumsum(chances)])
    return np.asarray(tokens * rate(count + np.arange(len(tokens))), dtype=np.float64)


def _counted(request: Counts, count: int) -> Counts:
    """Count the granted drafts of each request."""
    return np.bincount(request, minlength=count).astype(np.int64)
