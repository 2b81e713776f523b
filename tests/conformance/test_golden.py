"""Golden KV traces of the published algorithms: with given verdicts, columns and slots by kind move as published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
import torch

from fsm_spec.executor.generate import Options
from fsm_spec.executor.operators import Operators
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.operators import OPERATORS
from fsm_spec.oracle import holding
from fsm_spec.table import Table

PROMPT = list(range(1, 11))


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


def scripted(verdicts: list[int]) -> Operators:
    """Return operators whose acceptance follows a script; all else is real."""
    left = list(verdicts)

    def accept(
        logits: torch.Tensor, drafts: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        accepted = left.pop(0)
        assert accepted <= drafts.shape[1]
        return torch.tensor([accepted]), logits[accepted : accepted + 1].argmax(-1)

    readings = {key: accept if key.startswith("accept") else value for key, value in OPERATORS.items()}
    return Operators(CounterChooser(), readings)


def moves(run: Any) -> list[tuple[str, int, int]]:  # noqa: ANN401 (what the fixture gives)
    """Return (event, kv, emitted) after every step that moves either."""
    found: list[tuple[str, int, int]] = []
    for step in run.steps:
        now = (step["columns"]["kv"], step["columns"]["emitted"])
        if not found or found[-1][1:] != now:
            found.append((step["event"], *now))
    return found


@pytest.mark.parametrize(
    ("spec", "verdicts", "limit", "expected"),
    [
        (
            "isd",
            [3, 1],
            9,
            [
                ("admit", 0, 0),
                ("first", 10, 1),
                ("cold", 11, 2),
                ("verify", 15, 6),
                ("verify", 17, 8),
                ("cold", 18, 9),
            ],
        ),
        (
            "uno_linear",
            [3, 0],
            8,
            [
                ("admit", 0, 0),
                ("first", 10, 1),
                ("draft", 11, 1),
                ("verify", 15, 6),
                ("draft", 16, 6),
                ("verify", 17, 8),
            ],
        ),
    ],
)
def test_golden_trace(
    spec: str,
    verdicts: list[int],
    limit: int,
    expected: list[tuple[str, int, int]],
    executor: Executor,
    table_of: Callable[..., Table],
) -> None:
    """KV kept and tokens emitted after each verdict are those of the reference implementations."""
    table = table_of(spec, **{"isd": {"n": 4}, "uno_linear": {"b": 4}}[spec])
    run = executor.run(table, [PROMPT], Options(limit), operators=scripted(verdicts))
    assert expected == moves(run)
    assert limit == len(run.token_ids[0])


@pytest.mark.parametrize(
    ("spec", "state", "expected"),
    [
        ("isd", "cold", (11, 0, 3)),
        ("isd", "verify", (11, 3, 3)),
        ("uno_linear", "draft", (11, 0, 3)),
        ("uno_linear", "verify", (11, 3, 0)),
    ],
)
def test_golden_slots_by_kind(
    spec: str, state: str, expected: tuple[int, int, int], table_of: Callable[..., Table]
) -> None:
    """While a forward runs over 10 committed slots, its rows hold slots by their fate."""
    table = table_of(spec)
    columns = table.new_request(10, 100) | {"state": table.codes[state], "kv": 10, "emitted": 1}
    held = holding(table, columns)
    assert expected == (held["committed"], held["provisional"], held["scratch"])


@pytest.mark.parametrize(("spec", "peaks"), [("isd", [4, 7]), ("uno_linear", [5])])
def test_golden_reserve(spec: str, peaks: list[int], table_of: Callable[..., Table]) -> None:
    """A round reserves what its longest way needs: 2n - 1 slots, or b + 1."""
    table = table_of(spec)
    assert peaks == [state.peak for state in table.states if state.round]
