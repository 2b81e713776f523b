"""Tokens per forward of every shipped spec lie in the interval that its algorithm allows, and both ends are reached.

A forward counts where it has rows of the target's model; the token after the prefill belongs to no round. Runs are
driven by the scalar oracle with drawn operator results, without stops and far from the limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Final

import pytest

from fsm_spec.compile import compile_table
from fsm_spec.language.expression import evaluate
from fsm_spec.load import load, shipped
from fsm_spec.oracle import next_event, oracle
from fsm_spec.table import NO_STOP, Table

Params = Mapping[str, int]
Bound = Callable[[Params], Fraction]
Drawn = Callable[[str, int, int], int]
ROUNDS, LIMIT = 12, 100_000


def ratio(tokens: int, forwards: int = 1) -> Fraction:
    """Give tokens per forward exactly."""
    return Fraction(tokens, forwards)


def one_forward(drafts: Bound) -> tuple[Bound, Bound]:
    """Bound a round of one forward that judges so many drafts: one token at least."""
    return (lambda _: ratio(1)), lambda params: 1 + drafts(params)


def two_forwards(least: int, most: Bound) -> tuple[Bound, Bound]:
    """Bound a round of a draft and a verify forward."""
    return (lambda _: ratio(least, 2)), lambda params: most(params) / 2


def denoised(passes: Bound) -> tuple[Bound, Bound]:
    """Bound a block of b tokens that takes one to `passes` denoise passes and one that stores its KV."""
    return (lambda params: params["b"] / (passes(params) + 1)), lambda params: ratio(params["b"], 2)


def name(parameter: str, shift: int = 0) -> Bound:
    """Read a parameter."""
    return lambda params: ratio(params[parameter] + shift)


STRIDED: Final = one_forward(name("n", -1))
LINEAR: Final = two_forwards(1, name("b"))
GROUPS: Final = one_forward(name("b", -1))
BY_THRESHOLD: Final = denoised(name("b"))
IN_STEPS: Final = denoised(lambda params: ratio(min(params["steps"], params["b"])))
# Schedules leave no choice: the passes of a block are known.
EVENLY: Final[Bound] = IN_STEPS[0]
IN_TURN: Final[Bound] = denoised(lambda params: ratio(-(-params["b"] // params["quota"])))[0]
INTERVALS: Final[dict[str, tuple[Bound, Bound]]] = {
    "ar": one_forward(lambda _: ratio(0)),
    "ngram": one_forward(name("k")),
    **dict.fromkeys(["isd", "isd_gated", "isd_sampled", "isd_shipped", "isd_strided", "isd_topk"], STRIDED),
    **dict.fromkeys(["linear_spec", "linear_spec_plain", "linear_spec_lagged"], LINEAR),
    "eagle3": one_forward(name("d")),
    "dflash": one_forward(name("b", -1)),
    **dict.fromkeys(["draft_lm", "dspark", "dspark_earlier", "mtp"], one_forward(name("g"))),
    "linear_spec_threshold": ((lambda params: ratio(1, params["b"])), LINEAR[1]),
    **dict.fromkeys(["uno_linear", "uno_tree", "uno_unverified"], two_forwards(2, name("b", 1))),
    # Its draft pass emits its own clean token at once: each forward stands for itself.
    "uno_adaptive": one_forward(name("b", -1)),
    "uno_switching": two_forwards(2, name("deep", 1)),
    "uno_denoise": (
        lambda params: ratio(2, params["t"] + 1),
        lambda params: ratio(params["b"] + 1, params["t"] + 1),
    ),
    **dict.fromkeys(["quadratic", "quadratic_sampled", "tidar", "uno_quadratic"], GROUPS),
    "block_diffusion": denoised(lambda params: ratio(min(params["steps"], params["b"] - 1))),
    "fast_diffuser": IN_STEPS,
    "sdar_static": (EVENLY, EVENLY),
    "sdar_sequential": (IN_TURN, IN_TURN),
    **dict.fromkeys(["fast_dllm", "low_confidence", "sdar", "sdar_entropy"], BY_THRESHOLD),
}


def start(table: Table) -> dict[str, int]:
    """Give a request at its first round point, behind a prompt of whole blocks."""
    columns = table.new_request(table.block or 1, LIMIT)
    for event, args in (("admit", {}), ("first", {"stop": NO_STOP})):
        given = {arg.name: evaluate(arg.low, columns) for arg in table.events[event].args} | args
        wanted = {arg.name for arg in table.events[event].args} | (
            {"stop"} if table.events[event].emits else set()
        )
        columns = oracle(table, columns, event, {key: given[key] for key in wanted}).columns
    assert table.states[columns["state"]].round
    return columns


def run(table: Table, draw: Drawn, rounds: int = ROUNDS) -> list[tuple[int, int]]:
    """Run rounds, each count drawn within its range -> tokens and forwards from one emission to the next."""
    columns, forwards = start(table), 0
    found: list[tuple[int, int]] = []
    while len(found) < rounds:
        event = next_event(table, columns)
        assert event is not None
        plan = table.forwards[str(table.states[columns["state"]].forward)]
        forwards += plan.model is None and any(evaluate(seg.count, columns) > 0 for seg in plan.segments)
        args = {
            arg.name: draw(arg.name, evaluate(arg.low, columns), evaluate(arg.high, columns))
            for arg in table.events[event].args
        }
        outcome = oracle(
            table, columns, event, args | ({"stop": NO_STOP} if table.events[event].emits else {})
        )
        columns = outcome.columns
        if outcome.emitted:
            found.append((outcome.emitted, forwards))
            forwards = 0
    return found


def drawn(seed: int) -> Drawn:
    """Draw counts evenly over their ranges."""
    source = random.Random(seed)
    return lambda _, low, high: source.randint(low, high)


@cache
def tables(spec: str) -> list[Table]:
    """Compile for default and for small parameters."""
    return [compile_table(load(spec).spec, check=check) for check in (False, True)]


def test_every_spec_has_its_interval() -> None:
    """A spec without bounds of its own would be held to nothing."""
    assert set(shipped()) == set(INTERVALS)


@pytest.mark.parametrize("spec", sorted(INTERVALS))
def test_tokens_per_forward_lie_in_the_interval(spec: str) -> None:
    """A round that counts a token twice, or a forward too few, leaves the interval."""
    for table in tables(spec):
        low, high = (bound(table.params) for bound in INTERVALS[spec])
        for seed in range(4):
            for tokens, forwards in run(table, drawn(seed)):
                assert low <= ratio(tokens, forwards) <= high


@pytest.mark.parametrize("spec", sorted(INTERVALS))
def test_both_ends_of_the_interval_are_reached(spec: str) -> None:
    """Bounds that nothing reaches would hold for a round that is wrong by a token."""
    for table in tables(spec):
        low, high = (bound(table.params) for bound in INTERVALS[spec])
        names = sorted({arg.name for event in table.events.values() for arg in event.args})
        seen = [ratio(*each) for high_ends in subsets(names) for each in run(table, at_ends(high_ends), 3)]
        assert (low, high) == (min(seen), max(seen))


def subsets(names: list[str]) -> list[set[str]]:
    """List all subsets."""
    found: list[set[str]] = [set()]
    for each in names:
        found += [{each, *subset} for subset in found]
    return found


def at_ends(high_ends: set[str]) -> Drawn:
    """Draw the largest value of some counts and the smallest of the others."""
    return lambda arg, low, high: high if arg in high_ends else low
