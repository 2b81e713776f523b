"""One table, not three: a changed row changes checker, simulator and executor; a new spec needs no code anywhere.

Broken behaviour: a rule of a decode algorithm would stand in one of them on its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm_spec.checker.check import PROVED, REFUTED, Bounds, check
from fsm_spec.cli import application
from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.language.expression import Const, subtract
from fsm_spec.load import load, loads
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.acceptance import parse_accept
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Workload, parse_arrivals, parse_lengths
from fsm_spec.table import Row, Table
from fsm_spec.trace import TraceWriter, header

Records = list[dict[str, Any]]
POOL = Pool(40, 4)
ITERATIONS = 6

# Another algorithm from the operators there are: one draft from a mask row, judged with its exact law.
PEEK = """
spec: peek
about: One token ahead from a mask row, judged by rejection.
source: written for this test
lossless: {claim: sampling, why: rejection with the exact law of the draft}
contract: pending
carry:
  sure: {shape: [1], type: token}
  guess: {shape: [1], type: token}
  q: {shape: [1, vocab], type: law}
forwards:
  look:
    rows:
      - {name: seed, source: pending, logits: shifted, kv: keep}
      - {name: mask, source: mask, weights: adapter, logits: shifted, kv: scratch}
    ops:
      - {op: sample, rows: seed, out: token}
      - {op: sample, rows: mask, out: [ahead, law]}
  judge:
    rows:
      - {name: sure, source: sure, logits: shifted, kv: keep}
      - {name: guess, source: guess, logits: shifted, kv: provisional}
    ops:
      - {op: accept, rule: rejection, drafts: guess, q: q, rows: [sure, guess], out: [a, next]}
states:
  look: {phase: draft, forward: look, round: true, start: true}
  judge: {phase: verify, forward: judge}
transitions:
  - {from: look, to: judge, keep: 1, set: {sure: token, guess: ahead, q: law}}
  - {from: judge, to: look, keep: a + 1, emit: [sure, "guess[:a]", next], set: {pending: next}}
check:
  sometimes: {"three tokens come": "emitted > 3"}
"""


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random model of two layers."""
    return tiny_model(vocab=64)


def steps(records: Records) -> Records:
    """Leave out what is no step of a request."""
    return [record for record in records if "event" in record]


def executed(table: Table, model: Transformer) -> Records:
    """Run two prompts for a few iterations on the executor; give its steps."""
    records: Records = []
    trace = TraceWriter(records, header(table, Policy(), POOL, "", "executor"))
    session = Session(table, model, pool=POOL, trace=trace)
    for prompt in ([1, 2, 3, 1, 2], [4, 5, 4, 5]):
        session.add(prompt, Options(24))
    for _ in range(ITERATIONS):
        session.iterate()
    return steps(records)


def simulated(table: Table) -> Records:
    """Simulate two requests; give the steps of the first iterations."""
    records: Records = []
    trace = TraceWriter(records, header(table, Policy(), POOL, "", "simulator"))
    cost = CostModel(load_model("smollm2-135m"), load_hardware("h100"))
    requests = Workload(
        parse_arrivals("closed:2"), parse_lengths("5", "--input"), parse_lengths("24", "--output"), 2, 1
    ).generate()
    laws = Laws(acceptance=parse_accept("geometric:0.5", 1))
    Simulation(table, Policy(), POOL, cost, requests, laws, trace=trace).run()
    return [record for record in steps(records) if record["round"] < ITERATIONS]


MUTANTS: dict[str, tuple[str, str, Callable[[Row], dict[str, Any]]]] = {
    "keep one less": ("uno_linear", "verify", lambda row: {"keep": subtract(row.keep, Const(1))}),
    "emit one less": ("uno_linear", "verify", lambda row: {"emit": row.emit[:-1]}),
    "another target": ("isd", "cold", lambda _: {"target": "cold"}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_changed_row_changes_all_three(mutant: str, model: Transformer) -> None:
    """Checker verdict, simulator trace and executor trace follow one edit of one compiled row."""
    spec, event, change = MUTANTS[mutant]
    tables: list[tuple[Table, Table]] = []
    for small in (True, False):
        table = compile_table(load(spec).spec, check=small)
        (row,) = [row for row in table.rows_of(event) if not row.built_in]
        tables.append((table, table.with_row(row.index, **change(row))))
    (small_table, small_mutant), (table, mutated) = tables
    assert table.digest != mutated.digest
    assert check(small_table, Bounds(requests=1)).verdict == PROVED
    assert check(small_mutant, Bounds(requests=1)).verdict == REFUTED
    assert executed(table, model) != executed(mutated, model)
    assert simulated(table) != simulated(mutated)


def test_a_spec_nobody_has_seen_runs_everywhere(tmp_path: Path, model: Transformer) -> None:
    """A YAML file in a temporary folder is checked, simulated and executed, and its greedy output is plain decoding."""
    path = tmp_path / "peek.yaml"
    path.write_text(PEEK, encoding="utf-8")
    run = CliRunner()
    checked = run.invoke(application(), ["check", str(path), "--json"])
    assert (0, "proved") == (checked.exit_code, json.loads(checked.stdout)["verdict"])
    words = ["simulate", str(path), "--model", "smollm2-135m", "--hardware", "l40s", "--arrivals", "closed:2"]
    words += ["--input", "32", "--output", "16", "--requests", "6", "--accept", "0.5", "--json"]
    priced = run.invoke(application(), words)
    assert 0 == priced.exit_code
    assert json.loads(priced.stdout)
    outputs = []
    for spec in (loads(PEEK).spec, load("ar").spec):
        session = Session(compile_table(spec), model, pool=POOL)
        numbers = [session.add(prompt, Options(20)) for prompt in ([1, 2, 3], [9, 8, 7, 6])]
        session.run()
        outputs.append([session.result(number).token_ids for number in numbers])
    assert outputs[0] == outputs[1]
