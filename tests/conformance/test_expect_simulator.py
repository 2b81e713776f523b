"""The simulator's means converge to the expected values, and both read chances alike.

A test of n requests fails by chance where a mean lies more than ERRORS standard errors from its expected value: less
than 1 in 15,000 for each number, and never twice, since the draws are fixed by their seed.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from shipped_specs import EXPECTED

from fsm_spec.checker.chances import chances_of, parse_chances
from fsm_spec.checker.expect import Expected, expect
from fsm_spec.compile import compile_table
from fsm_spec.counts import draws_of, most_drafts
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.acceptance import parse_accept, parse_unmask
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.simulation import Results, Simulation
from fsm_spec.simulator.theory import accepted_law, expected_rounds
from fsm_spec.simulator.workload import Workload, parse_arrivals, parse_lengths
from fsm_spec.table import Table

ERRORS = 4.0
REQUESTS, LIMIT, SEED = 400, 41, 5
COST = CostModel(load_model("smollm2-135m"), load_hardware("h100"))
FOUND = 0.6
# The checker speaks of masks that are left, the simulator of masks that are filled: both say the same where passes
# fill all masks, or one each.
FILLED = {"geometric:0.7": 1, "geometric:0.3": 0, "geometric:1": 1}


def table_of(spec: str, **params: int) -> Table:
    """Compile a shipped spec with its default parameters."""
    return compile_table(load(spec).spec, params)


def simulated(table: Table, accept: str, requests: int = REQUESTS, limit: int = LIMIT) -> Results:
    """Run requests of `limit` tokens after a prompt of one."""
    lengths = parse_lengths("1", "--input"), parse_lengths(str(limit), "--output")
    load_ = Workload(parse_arrivals("closed:50"), *lengths, requests=requests, seed=1).generate()
    laws = Laws(
        parse_accept(accept, SEED) if most_drafts(table, "accept") else None,
        Lookup(FOUND, SEED) if most_drafts(table, "lookup") else None,
        parse_unmask(f"geometric:{FILLED[accept]}", SEED) if most_drafts(table, "unmask") else None,
    )
    return Simulation(table, Policy(), Pool(100_000, 16), COST, load_, laws).run()


def expected(table: Table, accept: str, limit: int = LIMIT) -> Expected:
    """Compute what the checker expects of the same request."""
    texts = [accept] + ([f"count=all:{FOUND}"] if most_drafts(table, "lookup") else [])
    return expect(table, chances_of(table, [*texts, *masks_left(table, FILLED.get(accept, 0))]), limit)


def masks_left(table: Table, filled: int) -> list[str]:
    """Give the checker's chances for masks left, where passes fill all masks (1) or one each (0)."""
    draws = {draw.name for state in table.states for draw in draws_of(table, state.name) if draw.down}
    return [f"{name}=geometric:{1 - filled}" for name in sorted(draws)]


@pytest.mark.parametrize("accept", ["geometric:0.7", "geometric:0.3"])
@pytest.mark.shows("simulated")
@pytest.mark.parametrize("spec", EXPECTED)
def test_means_converge_to_the_expected_values(spec: str, accept: str) -> None:
    """Rounds, forwards, tokens per round and per forward of 400 requests lie within four standard errors."""
    table = table_of(spec)
    results, known = simulated(table, accept), expected(table, accept)
    log, summary = results.log, results.summary
    assert (log.emitted - log.prefill_emitted == known.tokens).all()
    assert known.forwards is not None
    for counts, value in ((log.rounds, known.rounds), (log.forwards, known.forwards)):
        error = float(counts.std()) / np.sqrt(len(counts))
        assert float(value) == pytest.approx(float(counts.mean()), abs=ERRORS * error + 1e-9)
        # The test has power: a rate off by a tenth moves the mean by more than the error allowed.
        assert ERRORS * error < 0.1 * float(value)
    spread = float(log.rounds.std() / log.rounds.mean()) / np.sqrt(len(log.rounds))
    assert known.tokens_per_round is not None
    assert known.tokens_per_forward is not None
    assert float(known.tokens_per_round) == pytest.approx(
        summary.acceptance_length, rel=ERRORS * spread + 1e-9
    )
    assert float(known.tokens_per_forward) == pytest.approx(
        summary.tokens_per_forward, rel=ERRORS * spread + 1e-9
    )


@pytest.mark.parametrize("spec", EXPECTED)
def test_sure_rounds_are_equal(spec: str) -> None:
    """Where every draft is accepted nothing is left to chance, so one request equals its expected values."""
    table = table_of(spec)
    texts = ["geometric:1", "count=all:1"][: 1 + (most_drafts(table, "lookup") > 0)]
    known = expect(table, chances_of(table, [*texts, *masks_left(table, 1)]), 23)
    lengths = parse_lengths("1", "--input"), parse_lengths("23", "--output")
    load_ = Workload(parse_arrivals("closed:1"), *lengths, requests=1, seed=1).generate()
    laws = Laws(
        parse_accept("geometric:1") if most_drafts(table, "accept") else None,
        Lookup(1.0) if most_drafts(table, "lookup") else None,
        parse_unmask("geometric:1") if most_drafts(table, "unmask") else None,
    )
    results = Simulation(table, Policy(), Pool(100, 1), COST, load_, laws, checked=True).run()
    assert known.rounds == int(results.log.rounds[0])
    assert known.forwards == int(results.log.forwards[0])
    assert results.summary.kv is not None
    # Pages of one slot: the scheduler owns the peak of every round, which this request's rows may not all reach.
    assert known.peak_slots <= results.summary.kv.peak_pages


@pytest.mark.parametrize("text", ["0.8,0.7,0.6", "unconditional:0.8,0.56,0.336", "geometric:0.7"])
def test_chances_are_read_alike(text: str) -> None:
    """The checker's fractions are the simulator's floats, and give the law of its theory."""
    exact, simulator = parse_chances(text), parse_accept(text)
    rates = simulator.conditional(3)
    assert accepted_law(rates) == pytest.approx([float(part) for part in exact.law(3)])


@pytest.mark.parametrize(
    "text", ["", "x", "0.8,,1", "1.1", "-0.1", "inf", "geometric:1,1", "other:1", "unconditional:0.1,0.2"]
)
def test_chances_are_refused_alike(text: str) -> None:
    """What one of them cannot read the other cannot either, and both say the same of it."""
    with pytest.raises(UserError) as ours:
        parse_chances(text)
    with pytest.raises(UserError) as theirs:
        parse_accept(text)
    said = str(theirs.value).replace("--accept", "--expect").partition("; write")[0]
    assert said == str(ours.value).partition("; write")[0]


def test_chain_equals_the_closed_form() -> None:
    """The chain over a table gives the simulator's closed form, as the same fraction."""
    table = table_of("linear_spec", b=4)
    rates = [Fraction(8, 10), Fraction(7, 10), Fraction(6, 10)]
    assert expected_rounds(rates, 40) == expected(table, "0.8,0.7,0.6").rounds
