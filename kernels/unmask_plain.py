"""The unmask rules for one request in plain Python: the reading that `unmask.py` is compared with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fsm_spec.kernels.choose import Key, PlainChooser
from fsm_spec.kernels.law import SamplingParams, law_plain
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import sample_plain
from fsm_spec.kernels.unmask import MASKED


def unmask_plain(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Sequence[Sequence[float]],
    tokens: Sequence[int],
    params: SamplingParams,
    seed: int,
    positions: Sequence[int],
    turn: int,
    chooser: PlainChooser,
    *,
    threshold: float | None = None,
    quota: int | None = None,
    bound: float | None = None,
    last: bool = False,
    first: int = 0,
    stop_ids: Collection[int] = (),
    exclude: int | None = None,
) -> tuple[int, list[int]]:
    """Commit some open rows of one request, of live rows only -> (rest, filled); see `unmask`."""
    filled = list(tokens)
    masked = [row for row, token in enumerate(tokens) if token == MASKED]
    proposed, confidence, entropy = {}, {}, {}
    for row in masked:
        key = Key(seed, salted(positions[row], turn), Purpose.DRAFT)
        proposed[row], _ = sample_plain(logits[row], params, key, chooser, exclude=exclude)
        p = law_plain(logits[row], SamplingParams(1.0))
        confidence[row] = p[proposed[row]]
        entropy[row] = -sum(mass * math.log(mass) for mass in p if mass > 0)
    for row in masked if last else _chosen(rule, masked, confidence, entropy, threshold, quota, bound):
        filled[row] = proposed[row]
    stop = next((row for row in range(first, len(filled)) if filled[row] in stop_ids), None)
    if stop is not None:
        filled = [
            filled[stop] if row > stop and token == MASKED else token for row, token in enumerate(filled)
        ]
    return filled.count(MASKED), filled


def _chosen(
    rule: str,
    masked: list[int],
    confidence: dict[int, float],
    entropy: dict[int, float],
    threshold: float | None,
    quota: int | None,
    bound: float | None,
) -> list[int]:
    """Name the rows that the rule commits, at least one of the open ones; each rule in its source's words."""
    best = sorted(masked, key=lambda row: (-confidence[row], row))
    if rule in ("threshold", "above", "dynamic"):
        assert threshold is not None
        at_least = [row for row in best if confidence[row] >= threshold]
        above = [row for row in best if confidence[row] > threshold]
        if rule == "threshold":
            return at_least or best[:1]
        if rule == "above":
            return above or best[:1]
        assert quota is not None
        return above if above and len(above) >= quota else best[: max(1, quota)]
    if rule in ("schedule", "sequential"):
        assert quota is not None
        return (best if rule == "schedule" else masked)[: max(1, quota)]
    if rule != "entropy":
        raise ValueError(f"unknown unmask rule {rule!r}")
    assert bound is not None
    chosen: list[int] = []
    total = 0.0
    for row in sorted(masked, key=lambda row: (entropy[row], row)):
        total += entropy[row]
        if chosen and total > bound:
            break
        chosen.append(row)
    return chosen
