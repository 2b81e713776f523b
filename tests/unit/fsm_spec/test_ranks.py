"""Ranks of local states: no move lowers one, and only states that reach each other share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.exploration import Exploration, Limits
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.packed_actions import ActionsPacking
from fsm_spec.checker.ranks import ranks_of
from fsm_spec.compile import compile_table
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.policy_file import load_policy

MODEL = Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml"


def interleaved(policy: str) -> Interleaving:
    """Compose two requests of the common model."""
    automaton = Automaton(compile_table(load(MODEL).spec, check=True, page_size=2))
    return Interleaving(automaton, load_policy(policy), Pool(6, 2), 2, abort=False)


@pytest.mark.parametrize("policy", ["reserve", "greedy"])
def test_without_preemption_no_request_comes_back(policy: str) -> None:
    """A request that never gives its pages back only goes on: there is no cycle to look for."""
    assert ranks_of(ActionsPacking(interleaved(policy)).model, rounds=False) is None
    assert [] == Exploration(interleaved("reserve"), Limits(1000, 10**9)).cycle


def test_preempted_requests_keep_their_rank() -> None:
    """Waiting and drafting with as many tokens committed reach each other; every other move raises the rank."""
    composed = interleaved("holdback")
    packed = ActionsPacking(composed)
    ranks = ranks_of(packed.model, rounds=False)
    assert ranks is not None
    for code, values in enumerate(composed.local):
        for name, way in composed.events(values):
            after = len(composed.local) if composed.is_end(name, way) else packed.codes[way.after]
            if name == "preempt" or (name == "admit" and values != composed.first):
                assert ranks[code] == ranks[after]
            elif name != "admit":
                assert ranks[code] < ranks[after]
