"""The acceptance rules for one request in plain Python: the reading that `acceptance.py` is compared with.

A draw is made only when its result is needed, so no random number is used by two draws that matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsm_spec.kernels.acceptance import refuse_rule
from fsm_spec.kernels.choose import Key, PlainChooser
from fsm_spec.kernels.law import SamplingParams, law_plain
from fsm_spec.kernels.randomness import Purpose

Laws = Sequence[Sequence[float]]


def accept_plain(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Laws,
    drafts: Sequence[int],
    params: SamplingParams,
    seed: int,
    position: Sequence[int],
    chooser: PlainChooser,
    *,
    q: Laws | None = None,
    top: int | None = None,
    threshold: float | None = None,
    exclude: int | None = None,
) -> tuple[int, int]:
    """Judge the drafts of one request -> (accepted, next).

    One row of logits, and its predicted position, for each draft and one more.
    `q`, `top` and `threshold` are read by the rules `rejection`, `topk` and `threshold` only.
    Raises ValueError for an unknown rule or another number of rows.
    """
    refuse_rule(rule, top, threshold)
    if len(logits) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} rows of logits, not {len(logits)}")
    if rule == "greedy":
        laws = [law_plain(row, SamplingParams(), exclude) for row in logits]
        return _matched(laws, drafts, seed, position, chooser)
    laws = [law_plain(row, params, exclude) for row in logits]
    if rule == "match":
        return _matched(laws, drafts, seed, position, chooser)
    if rule == "rejection":
        return _rejected(laws, drafts, seed, position, chooser, q)
    if rule == "topk":
        accepted = _among_best(logits, drafts, top or 0, exclude)
        laws = [law_plain(row, SamplingParams(), exclude) for row in logits]
    elif rule == "threshold":
        accepted = _likely(laws, drafts, threshold or 0.0)
    else:
        accepted = len(drafts)
    return accepted, chooser.choose_one(laws[accepted], Key(seed, position[accepted], Purpose.TARGET))


def _among_best(logits: Laws, drafts: Sequence[int], top: int, exclude: int | None) -> int:
    """Count the leading drafts whose logit reaches the k-th best of their row."""
    for row, draft in enumerate(drafts):
        scores = [-math.inf if token == exclude else score for token, score in enumerate(logits[row])]
        kth = sorted(scores, reverse=True)[min(top, len(scores)) - 1]
        if scores[draft] < kth or scores[draft] == -math.inf:
            return row
    return len(drafts)


def _likely(laws: Laws, drafts: Sequence[int], threshold: float) -> int:
    """Count the leading drafts whose probability reaches the threshold."""
    for row, draft in enumerate(drafts):
        if laws[row][draft] < threshold:
            return row
    return len(drafts)


def _matched(
    laws: Laws, drafts: Sequence[int], seed: int, position: Sequence[int], chooser: PlainChooser
) -> tuple[int, int]:
    """Draw the verifier's tokens until one differs from the draft, and return that one."""
    for row, draft in enumerate(drafts):
        token = chooser.choose_one(laws[row], Key(seed, position[row], Purpose.TARGET))
        if token != draft:
            return row, token
    last = len(drafts)
    return last, chooser.choose_one(laws[last], Key(seed, position[last], Purpose.TARGET))


def _rejected(
    laws: Laws,
    drafts: Sequence[int],
    seed: int,
    position: Sequence[int],
    chooser: PlainChooser,
    q: Laws | None,
) -> tuple[int, int]:
    """Accept drafts with min(1, p / q) until one is rejected, and draw the correction or the bonus token."""
    for row, draft in enumerate(drafts):
        p = laws[row]
        proposal = [float(token == draft) for token in range(len(p))] if q is None else q[row]
        chance = min(1.0, p[draft] / proposal[draft]) if p[draft] > 0 else 0.0
        if chooser.choose_one([chance, 1 - chance], Key(seed, position[row], Purpose.ACCEPT)) == 1:
            left = [max(0.0, mine - theirs) for mine, theirs in zip(p, proposal, strict=True)]
            key = Key(seed, position[row], Purpose.RESIDUAL)
            return row, chooser.choose_one(left if max(left) > 0 else p, key)
    last = len(drafts)
    return last, chooser.choose_one(laws[last], Key(seed, position[last], Purpose.TARGET))
