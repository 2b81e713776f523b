"""The benchmark of rounds on a GPU goes its whole way on a CPU, so that it runs at the first try where one is lent."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def rounds(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program."""
    monkeypatch.syspath_prepend(str(project / "bench"))
    return importlib.import_module("gpu_rounds")


def test_a_dry_run_gives_every_row(rounds: ModuleType) -> None:
    """Plain steps, chains, and a draft model beside the target; what no time was left for is named."""
    bench = rounds.prepare("cpu", tiny=True, context=32, rounds=2)
    found = rounds.run(bench, ["ar", "isd", "eagle3"], [2], time.perf_counter() + 600)
    assert {} == found["failed"]
    modes = [(row["spec"], row["mode"]) for row in found["rows"]]
    first = [(spec, mode) for spec in ("ar", "isd") for mode in ("eager", "graph", "overlapped")]
    assert [*first, ("eagle3", "overlapped")] == modes
    by_spec = {row["spec"]: row for row in found["rows"] if row["mode"] == "overlapped"}
    assert 1.0 == by_spec["ar"]["tokens_a_round"]
    # More rows read the same weights, so that rounds of one launch differ by their logits and products alone.
    assert 0 < by_spec["ar"]["floor_us"] < by_spec["isd"]["floor_us"] < by_spec["eagle3"]["floor_us"]
    assert all(0 < row["device_us"] < row["round_us"] for row in found["rows"])
    late = rounds.run(bench, ["ar"], [1], 0.0)
    assert (["ar x 1"], []) == (late["left_out"], late["rows"])


def test_a_case_that_fails_is_named(rounds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One spec that cannot run is no reason to lose the others' numbers."""
    bench = rounds.prepare("cpu", tiny=True, context=32, rounds=2)

    def fail(*_: object) -> None:
        raise RuntimeError("out of luck\nand more")

    monkeypatch.setattr(rounds, "_prefill", fail)
    found = rounds.run(bench, ["ar"], [1], time.perf_counter() + 600)
    assert ({"ar x 1": "RuntimeError: out of luck"}, []) == (found["failed"], found["rows"])


def test_goals_are_held_to_rows_that_plan_ahead(rounds: ModuleType) -> None:
    """A round of drafts is compared with a plain step at batch 1; the gap is the largest of all."""
    rows = [
        {"spec": spec, "batch": batch, "mode": mode, "round_us": us, "gap_us": us / 100}
        for spec, batch, mode, us in (
            ("ar", 1, "overlapped", 4000.0), ("isd", 1, "overlapped", 4200.0), ("isd", 8, "overlapped", 6000.0),
            ("ar", 1, "eager", 9000.0),
        )
    ]  # fmt: skip
    assert {"goals": rounds.GOALS, "gap_us": 60.0, "isd_over_ar": 1.05} == rounds.judged(rows)
    assert {"goals": rounds.GOALS} == rounds.judged([])
