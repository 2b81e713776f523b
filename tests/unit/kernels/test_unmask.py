"""The unmask operator: each rule by hand, the plain reading, freezing, dead rows, and progress."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.enumeration import enumerate_outcomes, outcome_law
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law_plain
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.unmask import MASKED, UNMASK_RULES, unmask
from fsm_spec.kernels.unmask_plain import unmask_plain

CHOOSER = CounterChooser()
ROWS, VOCABULARY = 6, 7
CHOICES = [SamplingParams(), SamplingParams(1.0), SamplingParams(0.6, 3), SamplingParams(1.3, 0, 0.8, 0.1)]
NUMBERS: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.55},
    "above": {"threshold": 0.55},
    "schedule": {"quota": 2},
    "dynamic": {"threshold": 0.55, "quota": 2},
    "sequential": {"quota": 2},
    "entropy": {"bound": 1.2},
}
M = MASKED


def rows_with(best: list[float]) -> torch.Tensor:
    """Return logits [1, r, 4] whose argmax is token 1 with the given probability."""
    p = torch.tensor(
        [[(1 - mass) / 3, mass, (1 - mass) / 3, (1 - mass) / 3] for mass in best], dtype=torch.float64
    )
    return p.log().unsqueeze(0)


def greedy(rule: str, best: list[float], tokens: list[int], **options: Any) -> list[int]:  # noqa: ANN401 -- passed on
    """Unmask one greedy request by both readings, which must agree."""
    logits = rows_with(best)
    quota = options.pop("quota", None)
    rest, filled = unmask(
        rule,
        logits,
        torch.tensor([tokens]),
        torch.tensor([len(tokens)]),
        SamplingRows.of([SamplingParams()]),
        torch.tensor([0]),
        torch.arange(len(tokens)).unsqueeze(0),
        torch.tensor([0]),
        CHOOSER,
        quota=None if quota is None else torch.tensor([quota]),
        last=torch.tensor([True]) if options.get("last") else None,
        first=torch.tensor([options["first"]]) if "first" in options else None,
        stop_ids=[options["stop_ids"]] if "stop_ids" in options else None,
        **{name: options[name] for name in ("threshold", "bound", "exclude") if name in options},
    )
    params, positions = SamplingParams(), list(range(len(tokens)))
    plain = unmask_plain(
        rule, logits[0].tolist(), tokens, params, 0, positions, 0, CHOOSER, quota=quota, **options
    )
    assert plain == (int(rest), filled[0].tolist())
    return plain[1]


@pytest.mark.parametrize(
    ("rule", "best", "options", "expected"),
    [
        ("threshold", [0.4, 0.5, 0.9, 0.45], {"threshold": 0.48}, [M, 1, 1, M]),
        ("threshold", [0.4, 0.5, 0.9, 0.45], {"threshold": 0.95}, [M, M, 1, M]),  # the best one always
        ("above", [0.4, 0.5, 0.9, 0.45], {"threshold": 0.48}, [M, 1, 1, M]),
        ("above", [0.4, 0.9, 0.9, 0.45], {"threshold": 0.95}, [M, 1, M, M]),  # ties: the lower row
        ("schedule", [0.4, 0.9, 0.5, 0.6], {"quota": 2}, [M, 1, M, 1]),
        ("schedule", [0.4, 0.5, 0.5, 0.5], {"quota": 2}, [M, 1, 1, M]),
        ("schedule", [0.4, 0.9, 0.5, 0.6], {"quota": 9}, [1, 1, 1, 1]),
        ("schedule", [0.4, 0.9, 0.5, 0.6], {"quota": 0}, [M, 1, M, M]),  # progress
        ("dynamic", [0.4, 0.9, 0.5, 0.6], {"quota": 1, "threshold": 0.45}, [M, 1, 1, 1]),  # all that are sure
        ("dynamic", [0.4, 0.9, 0.5, 0.6], {"quota": 3, "threshold": 0.8}, [M, 1, 1, 1]),  # too few: the quota
        ("sequential", [0.4, 0.9, 0.5, 0.6], {"quota": 2}, [1, 1, M, M]),
        ("entropy", [0.4, 0.99, 0.5, 0.9], {"bound": 0.0}, [M, 1, M, M]),  # one at least
        ("entropy", [0.4, 0.99, 0.5, 0.9], {"bound": 0.6}, [M, 1, M, 1]),  # 0.067 + 0.435 <= 0.6
        ("entropy", [0.4, 0.99, 0.5, 0.9], {"bound": 9.0}, [1, 1, 1, 1]),
    ],
)
def test_rules_by_hand(rule: str, best: list[float], options: dict[str, Any], expected: list[int]) -> None:
    """Each rule commits the rows that its source says."""
    assert expected == greedy(rule, best, [M] * 4, **options)


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_open_rows_only(rule: str) -> None:
    """Rows that have a token keep it, whatever their confidence, and use up no quota."""
    filled = greedy(rule, [0.9, 0.4, 0.5, 0.9, 0.6], [3, M, M, 0, M], **NUMBERS[rule])
    assert (3, 0) == (filled[0], filled[3])
    expected = {"threshold": [M, M, 1], "above": [M, M, 1], "sequential": [1, 1, M], "entropy": [M, M, 1]}
    assert expected.get(rule, [M, 1, 1]) == filled[1:3] + filled[4:]


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_last_resolves_all(rule: str) -> None:
    """In the last step no mask is left, also where the rule alone would leave some."""
    assert [1, 1, 2, 1] == greedy(rule, [0.3, 0.4, 0.5, 0.3], [M, M, 2, M], last=True, **NUMBERS[rule])


def test_entropy_is_of_the_whole_law() -> None:
    """Two rows of equal confidence differ by the rest of their law: the reference's formula cannot see it."""
    logits = torch.tensor(
        [[[0.5, 0.2, 0.2, 0.1], [0.5, 0.5, 0.0, 0.0], [0.6, 0.4 / 3, 0.4 / 3, 0.4 / 3]]]
    ).log()
    _, filled = unmask(
        "entropy",
        logits,
        torch.full((1, 3), M),
        torch.tensor([3]),
        SamplingRows.of([SamplingParams()]),
        torch.tensor([0]),
        torch.arange(3).unsqueeze(0),
        torch.tensor([0]),
        CHOOSER,
        bound=0.0,
    )
    assert [M, 0, M] == filled[0].tolist()


def test_mask_id_is_an_ordinary_token() -> None:
    """The mask id is never predicted, weighs in the confidence, and a text that contains it is not open (13.8)."""
    logits_of_mask = [0.3, 0.9, 0.6, 0.6]  # token 1 is the mask id here
    filled = greedy("threshold", logits_of_mask, [M, 1, M, M], threshold=0.2, exclude=1)
    # Row 0 predicts token 0 with 0.7 / 3 = 0.233; rows 2 and 3 theirs with 0.4 / 3, not with 1 / 3.
    assert [0, 1, M, M] == filled


@pytest.mark.parametrize(
    ("tokens", "first", "stops", "expected"),
    [
        ([M, M, M, M], 0, {1, 9}, [M, 1, 1, 1]),  # the second row's stop token covers all behind it
        ([1, M, M, M], 0, {1, 9}, [1, 1, 1, 1]),
        ([3, 0, M, M], 2, {3}, [3, 0, 1, M]),  # a stop token of the prompt freezes nothing (T10)
        ([3, M, 1, M], 1, {1, 3}, [3, 1, 1, 1]),
        ([M, M, 3, M], 0, {3}, [M, 1, 3, 3]),  # rows before a stop token stay open
        ([M, M, 3, M], 0, {1, 3}, [M, 1, 3, 1]),  # the first one is copied
        ([M, M, M, M], 0, set(), [M, 1, M, M]),
    ],
)
def test_stop_token_freezes(tokens: list[int], first: int, stops: set[int], expected: list[int]) -> None:
    """Open rows behind the first generated stop token become that token."""
    best = [0.4, 0.9, 0.8, 0.3]
    assert expected == greedy("schedule", best, tokens, quota=1, first=first, stop_ids=stops)


def test_equality_with_the_threshold() -> None:
    """A confidence equal to the threshold is enough for `threshold`, not for `above` and `dynamic`."""
    even = [0.25] * 4  # four tokens of equal mass: the softmax is exact
    assert [0, 0, 0, 0] == greedy("threshold", even, [M] * 4, threshold=0.25)
    assert [0, M, M, M] == greedy("above", even, [M] * 4, threshold=0.25)
    assert [0, 0, M, M] == greedy("dynamic", even, [M] * 4, threshold=0.25, quota=2)


def make_batch(trial: int, batch: int = 5) -> dict[str, Any]:
    """Return random operands; what lies past the live rows is poison."""
    source = random.Random(trial)
    generator = torch.Generator().manual_seed(trial)
    logits = torch.randn(batch, ROWS, VOCABULARY, dtype=torch.float64, generator=generator) * 2
    counts = torch.tensor([source.randrange(ROWS + 1) for _ in range(batch)])
    tokens = torch.tensor([[source.choice([M, M, M, 0, 5]) for _ in range(ROWS)] for _ in range(batch)])
    for request in range(batch):
        logits[request, int(counts[request]) :] = torch.nan
    return {
        "logits": logits,
        "tokens": tokens,
        "counts": counts,
        "params": [source.choice(CHOICES) for _ in range(batch)],
        "seeds": torch.tensor([source.randrange(2**40) for _ in range(batch)]),
        "positions": torch.randint(0, 9999, (batch, 1), generator=generator) + torch.arange(ROWS),
        "turns": torch.tensor([source.randrange(2**31) for _ in range(batch)]),
        "quota": torch.tensor([source.randrange(ROWS) for _ in range(batch)]),
        "last": torch.tensor([source.random() < 0.2 for _ in range(batch)]),
        "first": torch.tensor([source.randrange(3) for _ in range(batch)]),
        "stop_ids": [source.choice([(), (2,), (3, 5)]) for _ in range(batch)],
        "exclude": source.choice([None, 4]),
        "threshold": source.choice([0.3, 0.5, 0.8]),
        "bound": source.choice([0.0, 1.0, 2.5]),
    }


def run_batch(rule: str, operands: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """Return what the batch reading gives."""
    rest, filled = unmask(
        rule,
        operands["logits"],
        operands["tokens"],
        operands["counts"],
        SamplingRows.of(operands["params"]),
        operands["seeds"],
        operands["positions"],
        operands["turns"],
        CHOOSER,
        **{
            name: operands[name]
            for name in ("quota", "last", "first", "stop_ids", "exclude", "threshold", "bound")
        },
    )
    return rest.tolist(), filled.tolist()


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_batch_equals_plain(rule: str) -> None:
    """A ragged batch gives each request what the plain reading gives; dead rows are unread; open ones dwindle."""
    committed = 0
    for trial in range(30):
        operands = make_batch(trial)
        before = {name: value.clone() for name, value in operands.items() if isinstance(value, torch.Tensor)}
        rest, filled = run_batch(rule, operands)
        for name, value in before.items():
            torch.testing.assert_close(value, operands[name], equal_nan=True, rtol=0, atol=0)
        for request, params in enumerate(operands["params"]):
            live = int(operands["counts"][request])
            one = {
                name: operands[name][request].item() for name in ("seeds", "turns", "quota", "last", "first")
            }
            tokens = operands["tokens"][request].tolist()
            expected = unmask_plain(
                rule,
                operands["logits"][request, :live].tolist(),
                tokens[:live],
                params,
                one["seeds"],
                operands["positions"][request].tolist(),
                one["turns"],
                CHOOSER,
                quota=one["quota"],
                last=one["last"],
                first=one["first"],
                stop_ids=operands["stop_ids"][request],
                **{name: operands[name] for name in ("exclude", "threshold", "bound")},
            )
            assert expected == (rest[request], filled[request][:live])
            assert tokens[live:] == filled[request][live:]
            still = tokens[:live].count(M)
            assert not still or rest[request] < still
            committed += still - rest[request]
    assert committed > 100


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_request_does_not_depend_on_batch(rule: str) -> None:
    """A request's float32 result is the same alone and in a batch, ties included."""
    torch.manual_seed(3)
    operands = make_batch(3)
    operands["logits"] = torch.randn(5, ROWS, 700)
    operands["logits"][:, 1::2] = operands["logits"][:, 0::2]
    operands["params"] = [CHOICES[request % len(CHOICES)] for request in range(5)]
    rest, filled = run_batch(rule, operands)
    for request in range(5):
        alone = {
            name: value if name in ("exclude", "threshold", "bound") else value[request : request + 1]
            for name, value in operands.items()
        }
        assert ([rest[request]], [filled[request]]) == run_batch(rule, alone)


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_nothing_open(rule: str) -> None:
    """A batch without an open row comes back as it is, without rows too."""
    operands = {**make_batch(2), "tokens": torch.full((5, ROWS), 3)}
    assert ([0] * 5, operands["tokens"].tolist()) == run_batch(rule, operands)
    operands |= {"tokens": torch.full((5, ROWS), M), "counts": torch.zeros(5, dtype=torch.int64)}
    assert ([0] * 5, operands["tokens"].tolist()) == run_batch(rule, operands)


def test_draws_follow_law_and_turn() -> None:
    """Committed tokens have the request's law; each turn draws anew, and a draw is named by its position."""
    params = SamplingParams(0.7, 3, 0.9)
    logits = [[0.3, 1.0, -0.4, 0.2], [1.2, 0.1, 0.0, 0.3]]

    def run(chooser: Any) -> tuple[int, ...]:  # noqa: ANN401 -- either chooser
        _, filled = unmask_plain("sequential", logits, [M, M], params, 0, [8, 9], 3, chooser, quota=2)
        return tuple(filled)

    found = outcome_law(enumerate_outcomes(run, once=frozenset(Purpose)))
    first, second = (law_plain(row, params) for row in logits)
    for one in range(4):
        for other in range(4):
            assert found.get((one, other), 0.0) == pytest.approx(first[one] * second[other], abs=1e-12)
    drawn = set()
    for turn in range(40):
        _, filled = unmask_plain("sequential", logits, [M, M], params, 0, [8, 9], turn, CHOOSER, quota=1)
        assert CHOOSER.choose_one(first, Key(0, salted(8, turn), Purpose.DRAFT)) == filled[0]
        drawn.add(filled[0])
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        ("threshold", "threshold"),
        ("above", "threshold"),
        ("dynamic", "threshold"),
        ("dynamic", "quota"),
        ("schedule", "quota"),
        ("sequential", "quota"),
        ("entropy", "bound"),
    ],
)
def test_missing_number_is_named(rule: str, missing: str) -> None:
    """A rule without its number is refused by name; so is an unknown rule, by both readings."""
    with pytest.raises(ValueError, match=f"the unmask rule {rule} needs {missing}"):
        run_batch(rule, {**make_batch(1), missing: None})
    with pytest.raises(ValueError, match="give one of threshold, above"):
        run_batch("best", make_batch(1))
    with pytest.raises(ValueError, match="unknown unmask rule"):
        unmask_plain("best", [[0.0, 1.0]], [M], SamplingParams(), 0, [0], 0, CHOOSER)
