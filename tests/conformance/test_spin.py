"""Spin and the compiled search count the same states and transitions, and agree on what is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.check import Bounds, compositions
from fsm_spec.checker.composition import Composition
from fsm_spec.checker.exploration import Exploration, Limits
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.compile import compile_table
from fsm_spec.decision import ADMISSIONS
from fsm_spec.language.expression import Const
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.policy_file import load_policy
from fsm_spec.promela.export import promela
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="Spin is not installed; on Debian: apt-get install spin gcc",
)

# Drafts and scratch slots; two events leave one state. `a` is cut, so that several arguments lead to one state;
# halves and remainders are read, and a column counts down.
SLIDING = """\
spec: sliding
about: A window over the newest tokens is filled, judged in two ways and thrown away.
source: written for the test
params:
  width: {range: [1, 8], default: 3, check: 3, about: slots of the window}
columns:
  left: {init: width, max: width, about: tokens to go}
  seen: {init: 0, max: 2 * width, about: tokens looked at}
events:
  fill: {about: the window is filled}
  judge: {args: {a: {range: [0, left]}}, about: so many tokens are good}
  skip: {about: the window is thrown away}
states:
  slide: {phase: draft, start: true, round: true, kv: {committed: width - left}, ignore: [judge, skip]}
  look:
    phase: verify
    kv: {committed: width - left, provisional: "ceil(left, 2)", scratch: left % 2 + seen // 4}
    ignore: [fill]
transitions:
  - {from: slide, on: fill, to: look, set: {seen: "min(seen + 1, 2 * width)"}}
  - {from: look, on: judge, when: "left > min(a, 2)", to: slide, set: {left: "left - min(a, 2)", seen: 0}}
  - {from: look, on: judge, when: "left <= min(a, 2)", to: end, set: {left: 0}}
  - {from: look, on: skip, when: seen < 2 * width, to: slide}
  - {from: look, on: skip, when: seen >= 2 * width, to: end}
check:
  always:
    something is left: "state != look or left > 0"
  eventually: end
"""


def spin(model: str, folder: Path, *flags: str) -> tuple[int, int, int]:
    """Give the states, transitions and errors that Spin finds."""
    path = folder / "model.pml"
    path.write_text(model, encoding="utf-8")
    done = subprocess.run(
        [str(Path("scripts/spin").resolve()), str(path), *flags],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPIN_CFLAGS": "-O0"},
    )
    assert done.returncode in (0, 1), done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    return int(found["states"]), int(found["transitions"]), int(found["errors"])


def ours(composed: Composition | Interleaving) -> tuple[int, int, bool]:
    """Give the states, transitions and whether safety or progress is broken, without symmetry."""
    explored = Exploration(composed, Limits(10_000_000, 1 << 30), symmetry=False)
    reached = explored.reached
    return len(reached.states), reached.moves, bool((reached.first >= 0).any()) or reached.stuck >= 0


def interleaved(table: Table, policy: str, requests: int, pages: int, *, abort: bool = False) -> Interleaving:
    """Compose an abstract model."""
    pool = Pool(pages, table.page_size)
    return Interleaving(Automaton(table), load_policy(policy), pool, requests, abort=abort)


@pytest.fixture(scope="module")
def common() -> Table:
    """Compile the common model."""
    loaded = load("tests/models/kvpool.yaml")
    return compile_table(loaded.spec, {"b": 2, "l": 4}, page_size=2, line_of=loaded.line_of)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Compile the model of this test."""
    path = tmp_path_factory.mktemp("model") / "sliding.yaml"
    path.write_text(SLIDING, encoding="utf-8")
    return compile_table(load(str(path)).spec, page_size=2)


# From the table of the common model.
COUNTS = {
    ("reserve", 2): (84, 116), ("reserve", 3): (2_648, 7_308),
    ("holdback", 2): (376, 788), ("holdback", 3): (9_380, 30_807),
    ("preempt", 2): (376, 878), ("preempt", 3): (9_380, 33_228),
    ("greedy", 2): (276, 576), ("greedy", 3): (6_080, 19_890),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "requests"), COUNTS)
def test_common_model(policy: str, requests: int, common: Table, tmp_path: Path) -> None:
    """The export would be another model than the one that is checked."""
    composed = interleaved(common, policy, requests, 3 * requests)
    states, transitions, errors = spin(promela(composed), tmp_path)
    assert COUNTS[policy, requests] == (states, transitions)
    # One state of the greedy policy has no way on.
    assert errors == int(policy == "greedy")
    assert ours(composed) == (states, transitions, errors > 0)


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("policy", ADMISSIONS)
def test_another_model(policy: str, abort: bool, sliding: Table, tmp_path: Path) -> None:  # noqa: FBT001
    """The export would be faithful to the common model only."""
    composed = interleaved(sliding, policy, 2, 5, abort=abort)
    states, transitions, errors = spin(promela(composed), tmp_path)
    assert ours(composed)[:2] == (states, transitions)
    assert states > 100
    assert ours(composed)[2] == (errors > 0)


def test_settings_of_an_exported_model(common: Table, tmp_path: Path) -> None:
    """A model could not be given another policy or pool without a new export."""
    model = promela(interleaved(common, "reserve", 2, 6))
    code = ADMISSIONS.index("greedy")
    assert (
        ours(interleaved(common, "greedy", 2, 5, abort=True))[:2]
        == spin(model, tmp_path, f"-DPOLICY={code}", "-DK=5", "-DABORT=1")[:2]
    )


def test_a_planted_fault(common: Table, tmp_path: Path) -> None:
    """Spin would not see what the checker sees: here tokens that no slots were taken for."""
    row = next(row for row in common.rows if row.event == "accept")
    faulty = common.with_row(row.index, sets=(*row.sets, ("com", Const(4))))
    composed = interleaved(faulty, "reserve", 2, 6)
    _, _, errors = spin(promela(composed), tmp_path)
    assert errors > 0
    assert ours(composed)[2]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("pages", [None, 8])
@pytest.mark.parametrize(
    ("spec", "policy"), [("ar", "greedy"), ("ar", "preempt"), ("linear_spec", "holdback")]
)
def test_rounds_of_a_scheduler(spec: str, policy: str, pages: int | None, lag: int, tmp_path: Path) -> None:
    """The translated scheduler would decide otherwise than the scheduler, or see requests as they are."""
    loaded = load(spec)
    table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    bounds = Bounds(requests=2, pages=pages, policies=(policy,), chunks=True, lag=lag)
    composed = next(compositions(table, bounds))
    states, transitions, errors = spin(promela(composed), tmp_path)
    assert ours(composed) == (states, transitions, errors > 0)


def test_rounds_of_several_sizes(tmp_path: Path) -> None:
    """A round would be exported under another size than the one that the scheduler chose for it, a late one here."""
    loaded = load("linear_spec")
    table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    bounds = Bounds(requests=2, policies=("tiers",), chunks=True, lag=1)
    composed = next(compositions(table, bounds))
    states, transitions, errors = spin(promela(composed), tmp_path)
    assert 2 == len(tiers_of(table, composed.policy).distinct)
    assert ours(composed) == (states, transitions, errors > 0)
