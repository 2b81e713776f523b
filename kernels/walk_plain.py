"""Walking the draft tree of one request in plain Python: the reading that `walk.py` is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsm_spec.kernels.choose import Key, PlainChooser
from fsm_spec.kernels.law import SamplingParams, law_plain
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import sample_plain


class WalkPlain(NamedTuple):
    """Hold where a walk ended."""

    accepted: int
    path: list[int]
    run: list[int]
    next: int


def walk_match_plain(
    logits: Sequence[Sequence[float]],
    tokens: Sequence[int],
    parents: Sequence[int],
    params: SamplingParams,
    seed: int,
    positions: Sequence[int],
    chooser: PlainChooser,
    *,
    exclude: int | None = None,
) -> WalkPlain:
    """Draw the node's token and walk to the child that carries it while there is one; see `walk_match`."""
    path = [0]
    while True:
        node = path[-1]
        key = Key(seed, positions[node], Purpose.TARGET)
        token, _ = sample_plain(logits[node], params, key, chooser, exclude=exclude)
        children = [
            child for child, parent in enumerate(parents) if parent == node and tokens[child] == token
        ]
        if not children:
            return WalkPlain(len(path) - 1, path, [tokens[node] for node in path], token)
        path.append(children[0])


def walk_residual_plain(
    logits: Sequence[Sequence[float]],
    tokens: Sequence[int],
    parents: Sequence[int],
    params: SamplingParams,
    seed: int,
    positions: Sequence[int],
    chooser: PlainChooser,
    *,
    exclude: int | None = None,
) -> WalkPlain:
    """Try children in order against what is left of the node's law; see `walk_residual`."""
    path = [0]
    p, purpose = law_plain(logits[0], params, exclude), Purpose.TARGET
    # Children stand behind their parent, so one pass in order meets the children of every node of the path.
    for child, parent in enumerate(parents):
        node = path[-1]
        if parent != node:
            continue
        chance = min(1.0, p[tokens[child]] / sum(p))
        key = Key(seed, salted(positions[node], child), Purpose.ACCEPT)
        if chooser.choose_one([chance, 1 - chance], key) == 0:
            path.append(child)
            p, purpose = law_plain(logits[child], params, exclude), Purpose.TARGET
        else:
            p[tokens[child]] = 0.0
            purpose = Purpose.RESIDUAL
    token = chooser.choose_one(p, Key(seed, positions[path[-1]], purpose))
    return WalkPlain(len(path) - 1, path, [tokens[node] for node in path], token)


def walk_plain(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Sequence[Sequence[float]],
    tokens: Sequence[int],
    parents: Sequence[int],
    params: SamplingParams,
    seed: int,
    positions: Sequence[int],
    chooser: PlainChooser,
    *,
    exclude: int | None = None,
) -> WalkPlain:
    """Walk by the rule of that name. Raises ValueError for an unknown rule."""
    if rule not in ("match", "residual"):
        raise ValueError(f"unknown walk rule {rule!r}; give match or residual")
    by_rule = walk_match_plain if rule == "match" else walk_residual_plain
    return by_rule(logits, tokens, parents, params, seed, positions, chooser, exclude=exclude)
