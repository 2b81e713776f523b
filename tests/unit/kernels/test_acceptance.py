"""The accept operator over ragged batches: its plain reading, dead rows, known faults of others (D1-D15)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES, accept
from fsm_spec.kernels.acceptance_plain import accept_plain
from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law
from fsm_spec.kernels.randomness import Purpose

CHOOSER = CounterChooser()
ALL_RULES = (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)
OPTIONS = {"topk": {"top": 2}, "threshold": {"threshold": 0.2}}
DEPTH, VOCABULARY = 4, 6
CHOICES = [
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.6, 3),
    SamplingParams(1.2, 0, 0.8),
    SamplingParams(1.0, 0, 1.0, 0.2),
]


@dataclass(frozen=True)
class Case:
    """Hold one ragged batch of drafts to judge."""

    logits: Tensor
    drafts: Tensor
    count: Tensor
    params: list[SamplingParams]
    seed: Tensor
    position: Tensor
    q: Tensor | None

    def judge(self, rule: str, exclude: int | None = None) -> tuple[list[int], list[int]]:
        """Return accepted counts and next tokens of the batch reading."""
        rows = SamplingRows.of(self.params)
        accepted, token = accept(
            rule,
            self.logits,
            self.drafts,
            self.count,
            rows,
            self.seed,
            self.position,
            CHOOSER,
            q=self.q,
            exclude=exclude,
            **OPTIONS.get(rule, {}),  # type: ignore[arg-type]
        )
        return accepted.tolist(), token.tolist()

    def judge_plain(self, rule: str, exclude: int | None = None) -> tuple[list[int], list[int]]:
        """Return accepted counts and next tokens of the plain reading, request by request."""
        results = []
        for request, params in enumerate(self.params):
            live = int(self.count[request])
            results.append(
                accept_plain(
                    rule,
                    self.logits[request, : live + 1].tolist(),
                    self.drafts[request, :live].tolist(),
                    params,
                    int(self.seed[request]),
                    self.position[request].tolist(),
                    CHOOSER,
                    q=None if self.q is None else self.q[request, :live].tolist(),
                    exclude=exclude,
                    **OPTIONS.get(rule, {}),  # type: ignore[arg-type]
                )
            )
        return [accepted for accepted, _ in results], [token for _, token in results]


def make_case(trial: int, *, with_q: bool, batch: int = 5) -> Case:
    """Return a random case; what lies past the live rows is poison."""
    source = random.Random(trial)
    generator = torch.Generator().manual_seed(trial)
    logits = torch.randn(batch, DEPTH, VOCABULARY, dtype=torch.float64, generator=generator) * 2
    params = [source.choice(CHOICES) for _ in range(batch)]
    count = torch.tensor([source.randrange(DEPTH) for _ in range(batch)])
    seed = torch.tensor([source.randrange(2**40) for _ in range(batch)])
    position = torch.randint(0, 10_000, (batch, 1), generator=generator) + torch.arange(DEPTH)
    near = logits[:, :-1] + torch.randn(
        batch, DEPTH - 1, VOCABULARY, dtype=torch.float64, generator=generator
    )
    repeated = SamplingRows.of(params).take(torch.arange(batch).repeat_interleave(DEPTH - 1))
    q = law(near.flatten(0, 1), repeated)
    keys = (seed.repeat_interleave(DEPTH - 1), position[:, :-1].flatten())
    drafts = CHOOSER.choose(q, *keys, Purpose.DRAFT) if with_q else near.flatten(0, 1).argmax(-1)
    drafts, q = drafts.view(batch, DEPTH - 1), q.view(batch, DEPTH - 1, VOCABULARY)
    for request in range(batch):
        live = int(count[request])
        logits[request, live + 1 :] = torch.nan
        drafts[request, live:] = -1
        q[request, live:] = torch.nan
    return Case(logits, drafts, count, params, seed, position, q if with_q else None)


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("with_q", [False, True])
def test_batch_equals_plain(rule: str, *, with_q: bool) -> None:
    """A ragged batch of mixed requests gives each what the plain reading gives (D9); dead rows are unread."""
    seen: set[tuple[int, int]] = set()
    for trial in range(40):
        case = make_case(trial, with_q=with_q)
        exclude = trial % VOCABULARY if trial % 3 == 0 and not with_q else None
        expected = case.judge_plain(rule, exclude)
        assert expected == case.judge(rule, exclude)
        seen.update(zip(expected[0], case.count.tolist(), strict=True))
    fewest = DEPTH if rule == "always" else 0
    expected_seen = {(n, count) for count in range(DEPTH) for n in range(min(count, fewest), count + 1)}
    assert expected_seen == seen


@pytest.mark.parametrize("rule", ALL_RULES)
def test_request_does_not_depend_on_batch(rule: str) -> None:
    """A request's float32 result is the same alone and in a batch."""
    torch.manual_seed(1)
    logits = torch.randn(6, 3, 700) * 3
    drafts = logits[:, :-1].argmax(-1)
    seed, position = torch.arange(6), torch.arange(3).expand(6, 3) + 10
    params = [CHOICES[request % len(CHOICES)] for request in range(6)]
    count = torch.tensor([2, 1, 0, 2, 2, 1])
    whole = Case(logits, drafts, count, params, seed, position, None).judge(rule)
    for request in range(6):
        one = slice(request, request + 1)
        alone = Case(logits[one], drafts[one], count[one], params[one], seed[one], position[one], None)
        assert ([whole[0][request]], [whole[1][request]]) == alone.judge(rule)


@pytest.mark.parametrize("rule", ALL_RULES)
def test_inputs_are_unmodified(rule: str) -> None:
    """No operand is written to, for full and ragged batches (D11)."""
    for count in ([3, 3], [1, 3]):
        case = make_case(9, with_q=True, batch=2)
        live = torch.tensor(count)
        logits, q = torch.randn(2, DEPTH, VOCABULARY), torch.rand(2, DEPTH - 1, VOCABULARY)
        drafts = torch.ones(2, DEPTH - 1, dtype=torch.int64)
        operands = (logits, drafts, live, case.seed, case.position, q)
        before = [operand.clone() for operand in operands]
        for params in (SamplingParams(), SamplingParams(0.7, 3, 0.9, 0.05)):
            Case(logits, drafts, live, [params] * 2, case.seed, case.position, q).judge(rule, exclude=0)
        assert all(old.equal(new) for old, new in zip(before, operands, strict=True))


def single(p: list[list[float]], drafts: list[int], q: list[list[float]] | None, seed: int) -> Case:
    """Return a case of one request whose verifier has the given laws at temperature 1."""
    logits = torch.tensor([p], dtype=torch.float64).log()
    laws = None if q is None else torch.tensor([q], dtype=torch.float64)
    return Case(
        logits,
        torch.tensor([drafts], dtype=torch.int64).view(1, -1),
        torch.tensor([len(drafts)]),
        [SamplingParams(1.0)],
        torch.tensor([seed]),
        torch.arange(len(p)).unsqueeze(0),
        laws,
    )


def test_residual_without_mass_falls_back() -> None:
    """Where p - q has no mass the correction is drawn from p, not token 0 (D4)."""
    p = [0.0, 0.25, 0.75]
    # q exceeds p at every token, as rounding can make it; the draft is rejected half of the time.
    tokens = set()
    for seed in range(60):
        accepted, token = single([p, p], [1], [[0.0, 0.5, 1.5]], seed).judge("rejection")
        if accepted == [0]:
            tokens.add(token[0])
    assert {1, 2} == tokens


def test_impossible_draft_is_rejected() -> None:
    """A draft outside p's support is rejected, also where q denies having proposed it; so are others' ids."""
    for q in (None, [[0.5, 0.5, 0.0]], [[0.0, 1.0, 0.0]]):
        for seed in range(40):
            accepted, token = single([[0.0, 0.5, 0.5]] * 2, [0], q, seed).judge("rejection")
            assert [0] == accepted
            assert token[0] in (1, 2)


def test_certain_draft_is_accepted() -> None:
    """A draft with p >= q is accepted whatever the number drawn."""
    for seed in range(40):
        assert [1] == single([[0.5, 0.5], [1.0, 0.0]], [0], [[0.5, 0.5]], seed).judge("rejection")[0]


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_no_drafts_is_plain_decoding(rule: str) -> None:
    """Without drafts the next token is plain decoding's draw: target purpose, same seed and position."""
    for seed in range(20):
        p = [0.1, 0.2, 0.3, 0.4]
        accepted, token = single([p], [], None, seed).judge(rule)
        assert ([0], [CHOOSER.choose_one(p, Key(seed, 0, Purpose.TARGET))]) == (accepted, token)


def test_match_emits_plain_decoding() -> None:
    """Every token of `match` is plain decoding's own sample at its position, whatever was drafted (D14)."""
    p = [0.4, 0.3, 0.2, 0.1]
    for seed in range(30):
        plain = [CHOOSER.choose_one(p, Key(seed, at, Purpose.TARGET)) for at in range(3)]
        for drafts in ([0, 0], plain[:2], [plain[0], 3]):
            accepted, token = single([p] * 3, drafts, None, seed).judge("match")
            assert plain[: accepted[0] + 1] == [*drafts[: accepted[0]], token[0]]


@pytest.mark.parametrize("rule", ACCEPT_RULES)
def test_greedy_output_does_not_depend_on_drafts(rule: str) -> None:
    """At temperature 0 all rules emit argmaxes, alone and beside sampled requests (D15)."""
    torch.manual_seed(4)
    logits = torch.randn(3, DEPTH, VOCABULARY)
    best = logits.argmax(-1)
    seed, position = torch.arange(3), torch.arange(DEPTH).expand(3, DEPTH)
    for other in (SamplingParams(), SamplingParams(1.0)):
        params = [SamplingParams(), SamplingParams(), other]
        for trial in range(10):
            drafts = torch.where(torch.rand(3, DEPTH - 1) < 0.7, best[:, :-1], trial % VOCABULARY)
            q = torch.rand(3, DEPTH - 1, VOCABULARY) + 0.1
            for laws in (None, q):
                case = Case(logits, drafts, torch.full((3,), DEPTH - 1), params, seed, position, laws)
                accepted, token = case.judge(rule)
                for request in range(2):
                    emitted = [*drafts[request, : accepted[request]].tolist(), token[request]]
                    assert best[request, : len(emitted)].tolist() == emitted
                    expected = drafts[request].eq(best[request, :-1]).long().cumprod(0).sum()
                    assert int(expected) == accepted[request]


def test_greedy_rule_ignores_temperature() -> None:
    """The greedy rule judges by argmax at any temperature."""
    case = make_case(2, with_q=False)
    hot = Case(
        case.logits, case.drafts, case.count, [SamplingParams(2.0)] * 5, case.seed, case.position, None
    )
    assert case.judge("greedy") == hot.judge("greedy")


def single_lossy(rule: str, p: list[list[float]], drafts: list[int], **options: float) -> tuple[int, int]:
    """Judge the drafts of one greedy request by a rule without a law of its own."""
    accepted, token = accept(
        rule,
        torch.tensor([p], dtype=torch.float64).log(),
        torch.tensor([drafts]),
        torch.tensor([len(drafts)]),
        SamplingRows.of([SamplingParams()]),
        torch.tensor([0]),
        torch.arange(len(p)).unsqueeze(0),
        CHOOSER,
        **options,  # type: ignore[arg-type]
    )
    plain = accept_plain(
        rule,
        torch.tensor(p, dtype=torch.float64).log().tolist(),
        drafts,
        SamplingParams(),
        0,
        list(range(len(p))),
        CHOOSER,
        **options,  # type: ignore[arg-type]
    )
    assert plain == (int(accepted), int(token))
    return plain


def test_topk_accepts_ties_and_nothing_impossible() -> None:
    """A draft that ties with the k-th best stands; one that the target never gives does not, however large k."""
    row = [0.5, 0.25, 0.25, 0.0]
    assert (1, 0) == single_lossy("topk", [row, row], [2], top=2)
    assert (0, 0) == single_lossy("topk", [row, row], [1], top=1)
    assert (0, 0) == single_lossy("topk", [row, row], [3], top=9)
    assert (1, 0) == single_lossy("topk", [row, row], [2], top=9)


def test_threshold_is_reached_by_equality() -> None:
    """A probability equal to the threshold stands; at temperature 0 only the argmax has any."""
    p = [[0.5, 0.25, 0.25]] * 2
    assert (1, 0) == single_lossy("threshold", p, [0], threshold=1.0)
    assert (0, 0) == single_lossy("threshold", p, [1], threshold=0.1)
    assert (1, 0) == single_lossy("threshold", p, [1], threshold=0.0)
    logits, drafts = torch.tensor([p], dtype=torch.float64).log(), torch.tensor([[1]])
    rows, where = SamplingRows.of([SamplingParams(1.0)]), torch.arange(2).unsqueeze(0)
    one = torch.tensor([1])
    for threshold, stands in ((0.25, 1), (0.26, 0)):
        accepted, _ = accept("threshold", logits, drafts, one, rows, one, where, CHOOSER, threshold=threshold)
        assert stands == int(accepted)


@pytest.mark.parametrize(
    ("rule", "options"),
    [("topk", {}), ("topk", {"top": 0}), ("threshold", {}), ("threshold", {"threshold": 1.1})],
)
def test_lossy_rules_need_their_number(rule: str, options: dict[str, float]) -> None:
    """A rule without its number is refused by both readings."""
    case = make_case(1, with_q=False)
    message = "the accept rule .* needs"
    operands = (case.logits, case.drafts, case.count, SamplingRows.of(case.params), case.seed, case.position)
    with pytest.raises(ValueError, match=message):
        accept(rule, *operands, CHOOSER, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        accept_plain(rule, [[0.0]], [], SamplingParams(), 0, [0], CHOOSER, **options)  # type: ignore[arg-type]


def test_unknown_rule_and_bad_shape() -> None:
    """An unknown rule is named with the known ones; plain rows must be one more than drafts."""
    case = make_case(1, with_q=False)
    with pytest.raises(ValueError, match="give one of greedy, match, rejection"):
        case.judge("matched")
    with pytest.raises(ValueError, match="unknown accept rule"):
        case.judge_plain("matched")
    with pytest.raises(ValueError, match="1 drafts need 2 rows of logits, not 1"):
        accept_plain("match", [[0.0]], [0], SamplingParams(), 0, [0], CHOOSER)
