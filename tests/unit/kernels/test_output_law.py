"""The exact output law of every acceptance rule on a four-token model, by enumeration of all outcomes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

from fsm_spec.kernels.acceptance import accept
from fsm_spec.kernels.acceptance_plain import accept_plain
from fsm_spec.kernels.choose import Key
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes, outcome_law
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law_plain
from fsm_spec.kernels.randomness import Purpose

VOCABULARY, LENGTH, DRAFTS = 4, 3, 2
EXACT = 1e-12
# Draws that the output depends on are made once; proposals after a rejection are dropped and drawn anew.
ONCE = frozenset({Purpose.TARGET, Purpose.ACCEPT, Purpose.RESIDUAL})
SAMPLED = [SamplingParams(1.0), SamplingParams(0.7, 3, 0.9), SamplingParams(1.5, 0, 0.8, 0.3)]
Tokens = tuple[int, ...]
Drafter = Callable[[Tokens, SamplingParams, Enumerator], tuple[list[int], list[list[float]] | None]]
Judge = Callable[..., tuple[int, int]]


@cache
def logits_after(prefix: Tokens, model: str) -> tuple[float, ...]:
    """Return the logits of a model (target or draft) after a prefix: random, fixed."""
    source = random.Random(f"{model} {prefix}")
    return tuple(source.gauss(0, 1.5) for _ in range(VOCABULARY))


def target_law(params: SamplingParams) -> dict[Tokens, float]:
    """Return the law of the first tokens under plain decoding, from the definition."""
    joint = {}
    for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH):
        mass = 1.0
        for at, token in enumerate(tokens):
            mass *= law_plain(logits_after(tokens[:at], "target"), params)[token]
        joint[tokens] = mass
    return joint


def sampled_drafts(
    prefix: Tokens, params: SamplingParams, chooser: Enumerator
) -> tuple[list[int], list[list[float]] | None]:
    """Draw drafts one after the other from the draft model, and keep their laws."""
    drafts: list[int] = []
    laws = []
    for _ in range(DRAFTS):
        at = (*prefix, *drafts)
        q = law_plain(logits_after(at, "draft"), params)
        drafts.append(chooser.choose_one(q, Key(0, len(at), Purpose.DRAFT)))
        laws.append(q)
    return drafts, laws


def narrow_drafts(
    prefix: Tokens, params: SamplingParams, chooser: Enumerator
) -> tuple[list[int], list[list[float]] | None]:
    """Draw drafts among the two best of the draft model: fewer outcomes, another support than p's."""
    return sampled_drafts(prefix, params._replace(top_k=2), chooser)


def argmax_drafts(
    prefix: Tokens, params: SamplingParams, chooser: Enumerator
) -> tuple[list[int], list[list[float]] | None]:
    """Take the draft model's argmax, a function of the prefix."""
    del params
    drafts, _ = sampled_drafts(prefix, SamplingParams(), chooser)
    return drafts, None


def argmax_with_softmax(
    prefix: Tokens, params: SamplingParams, chooser: Enumerator
) -> tuple[list[int], list[list[float]] | None]:
    """Take the argmax but claim that it was drawn from the softmax: the published fault (D1)."""
    drafts, _ = argmax_drafts(prefix, params, chooser)
    return drafts, [law_plain(logits_after((*prefix, *drafts[:at]), "draft"), params) for at in range(DRAFTS)]


def argmax_with_point_mass(
    prefix: Tokens, params: SamplingParams, chooser: Enumerator
) -> tuple[list[int], list[list[float]] | None]:
    """Take the argmax and give its law as an explicit point mass."""
    drafts, _ = argmax_drafts(prefix, params, chooser)
    return drafts, [[float(token == draft) for token in range(VOCABULARY)] for draft in drafts]


def judge_tensors(
    rule: str,
    logits: Sequence[Sequence[float]],
    drafts: list[int],
    params: SamplingParams,
    seed: int,
    position: list[int],
    chooser: Enumerator,
    *,
    q: list[list[float]] | None,
    **options: Any,  # noqa: ANN401 -- passed on
) -> tuple[int, int]:
    """Judge by the batch reading, in float64."""
    accepted, token = accept(
        rule,
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([drafts], dtype=torch.int64),
        torch.tensor([len(drafts)]),
        SamplingRows.of([params]),
        torch.tensor([seed]),
        torch.tensor([position]),
        chooser,
        q=None if q is None else torch.tensor([q], dtype=torch.float64),
        **options,
    )
    return int(accepted), int(token)


def decode(
    rule: str, params: SamplingParams, drafter: Drafter, judge: Judge, rounds: int
) -> Callable[[Enumerator], Tokens]:
    """Return a run that decodes some rounds with drafts, and goes on plainly to the full length."""

    def run(chooser: Enumerator) -> Tokens:
        text: Tokens = ()
        for _ in range(rounds):
            if len(text) >= LENGTH:
                break
            drafts, q = drafter(text, params, chooser)
            rows = [logits_after((*text, *drafts[:row]), "target") for row in range(DRAFTS + 1)]
            position = [len(text) + row for row in range(DRAFTS + 1)]
            accepted, token = judge(rule, rows, drafts, params, 0, position, chooser, q=q)
            text = (*text, *drafts[:accepted], token)
        while len(text) < LENGTH:
            p = law_plain(logits_after(text, "target"), params)
            text = (*text, chooser.choose_one(p, Key(0, len(text), Purpose.TARGET)))
        return text[:LENGTH]

    return run


def distance(
    rule: str, params: SamplingParams, drafter: Drafter, judge: Judge = accept_plain, rounds: int = LENGTH
) -> float:
    """Return the largest difference between the output law and the target's."""
    once = ONCE if judge is accept_plain else frozenset[Purpose]()
    found = outcome_law(enumerate_outcomes(decode(rule, params, drafter, judge, rounds), once))
    return max(abs(found.get(tokens, 0.0) - mass) for tokens, mass in target_law(params).items())


@pytest.mark.parametrize("params", SAMPLED)
@pytest.mark.parametrize(
    ("rule", "drafter"),
    [
        ("match", argmax_drafts),
        ("match", narrow_drafts),
        ("rejection", argmax_drafts),
        ("rejection", argmax_with_point_mass),
        ("rejection", narrow_drafts),
    ],
)
def test_plain_reading_is_lossless(rule: str, drafter: Drafter, params: SamplingParams) -> None:
    """Several rounds of drafting give the target's joint law, and no number decides twice (D6-D8, D10)."""
    assert distance(rule, params, drafter) < EXACT


@pytest.mark.parametrize("params", SAMPLED[:2])
@pytest.mark.parametrize(
    ("rule", "drafter"),
    [("match", argmax_drafts), ("rejection", argmax_drafts), ("rejection", sampled_drafts)],
)
def test_batch_reading_is_lossless(rule: str, drafter: Drafter, params: SamplingParams) -> None:
    """A round of the batch reading, continued plainly, gives the target's joint law."""
    assert distance(rule, params, drafter, judge_tensors, rounds=1) < EXACT


@pytest.mark.parametrize("judge", [accept_plain, judge_tensors])
@pytest.mark.parametrize("rule", ["greedy", "match", "rejection"])
def test_temperature_zero_is_greedy_decoding(rule: str, judge: Judge) -> None:
    """At temperature 0 every rule has the one output of greedy decoding."""
    for drafter in (argmax_drafts, sampled_drafts):
        assert distance(rule, SamplingParams(), drafter, judge) == 0


@pytest.mark.parametrize("judge", [accept_plain, judge_tensors])
def test_argmax_draft_with_softmax_law_is_refuted(judge: Judge) -> None:
    """The rule that other engines shipped does not have the target's law, and enumeration shows it (D1)."""
    assert distance("rejection", SamplingParams(1.0), argmax_with_softmax, judge, rounds=1) > 0.01


@pytest.mark.parametrize("judge", [accept_plain, judge_tensors])
def test_published_numbers_of_the_fault(judge: Judge) -> None:
    """With q(x*) = 0.5 and p(x*) = 0.4 the faulty rule emits x* with 0.8; as a point mass it emits 0.4."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.5, 0.2, 0.2, 0.1]
    logits = torch.tensor([p, p], dtype=torch.float64).log().tolist()

    def first(claimed: list[list[float]] | None) -> float:
        def run(chooser: Enumerator) -> int:
            accepted, token = judge(
                "rejection", logits, [0], SamplingParams(1.0), 0, [0, 1], chooser, q=claimed
            )
            return 0 if accepted else token

        return outcome_law(enumerate_outcomes(run))[0]

    assert first([q]) == pytest.approx(0.8, abs=EXACT)
    assert first(None) == pytest.approx(0.4, abs=EXACT)


@pytest.mark.parametrize(
    ("rule", "options"), [("topk", {"top": 3}), ("threshold", {"threshold": 0.1}), ("always", {})]
)
@pytest.mark.parametrize("judge", [accept_plain, judge_tensors])
def test_rules_that_are_not_lossless(rule: str, options: dict[str, float], judge: Judge) -> None:
    """The rules that are named so do change the law."""
    assert distance(rule, SamplingParams(1.0), narrow_drafts, partial(judge, **options), rounds=1) > 0.01


def test_untruncated_verifier_is_refuted() -> None:
    """Judging by other parameters than the request's gives another law: the machinery sees it (D9, D10)."""
    params = SAMPLED[1]

    def untruncated(rule: str, *args: object, **options: object) -> tuple[int, int]:
        logits, drafts, _, *rest = args
        return accept_plain(rule, logits, drafts, SamplingParams(params.temperature), *rest, **options)  # type: ignore[arg-type]

    assert distance("rejection", params, narrow_drafts, untruncated) > 0.01
