"""By how much specs that claim no law are off, exactly: all outcomes on toys whose laws are written down here."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from exact_run import MASK, PROMPT, VOCABULARY, Run, Tokens, output_law

from fsm_spec.executor.toy import Seen, ToyModel
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.table import Table

TARGET, DRAFT = (0.4, 0.35, 0.25, 0.0), (0.5, 0.3, 0.2, 0.0)
EXACT = 1e-12
Tables = Callable[..., Table]


def logits_of(law: tuple[float, ...]) -> tuple[float, ...]:
    """Give logits whose softmax is the law."""
    return tuple(math.log(mass) if mass else -math.inf for mass in law)


class Split(ToyModel):
    """Predict by one law on clean rows, and by another on mask rows and under the adapter."""

    def __init__(self, draft: tuple[float, ...] = DRAFT) -> None:
        super().__init__(VOCABULARY)
        self.draft = draft

    def _draw(self, seen: Seen, position: int, gate: bool) -> tuple[float, ...]:  # noqa: FBT001 -- a row's gate
        own = {at: token for at, token, _ in seen}[position]
        return logits_of(self.draft if gate or own == MASK else TARGET)


class Copying(ToyModel):
    """Repeat the token before; behind a mask or the prompt, 0 and 1 are equally likely."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)

    def _draw(self, seen: Seen, position: int, gate: bool) -> tuple[float, ...]:  # noqa: FBT001 -- a row's gate
        del gate  # the base model speaks of its own text
        before = {at: token for at, token, _ in seen}.get(position - 1, MASK)
        if position <= len(PROMPT) or before == MASK:
            return logits_of((0.5, 0.5, 0.0, 0.0))
        return logits_of(tuple(float(token == before) for token in range(VOCABULARY)))


def token_law(law: dict[Tokens, float], at: int) -> tuple[float, ...]:
    """Give the law of one token of the output."""
    return tuple(
        sum(mass for tokens, mass in law.items() if tokens[at] == token) for token in range(VOCABULARY)
    )


def output(table: Table, model: ToyModel, limit: int) -> dict[Tokens, float]:
    """Return the exact law of the first tokens at temperature 1."""
    return output_law(Run.begin(table, SamplingParams(1.0), limit, model=model))


def judged_token(table: Table, model: ToyModel) -> tuple[float, ...]:
    """Give the law of the third token, the first that a strided round judges as a draft; all before are clean."""
    law = output(table, model, 3)
    for at in (0, 1):
        assert TARGET == pytest.approx(token_law(law, at), abs=EXACT)
    return token_law(law, 2)


def test_shipped_rule_of_strided_decoding(table_of: Tables) -> None:
    """An argmax draft judged by the softmax beside it: x* with q = 0.5 and p = 0.4 comes out with p / q = 0.8."""
    found = judged_token(table_of("isd_shipped", n=2), Split())
    # What is left goes to the tokens that p has more of than q: by 0.05 each.
    assert (0.8, 0.1, 0.1, 0.0) == pytest.approx(found, abs=EXACT)
    assert 0.4 == pytest.approx(found[0] - TARGET[0], abs=EXACT)


@pytest.mark.parametrize("spec", ["isd", "isd_sampled"])
def test_lossless_rules_on_the_same_model(spec: str, table_of: Tables) -> None:
    """The two right ways to judge the same drafts give the target's law."""
    assert TARGET == pytest.approx(judged_token(table_of(spec, n=2), Split()), abs=EXACT)


@pytest.mark.parametrize(("top", "token"), [(1, 0), (2, 1), (4, 2)])
def test_fast_verify(top: int, token: int, table_of: Tables) -> None:
    """The drafter's favourite comes out surely if it is among the target's `top` most likely, whatever p says."""
    favourite = tuple(0.9 if each == token else 0.05 if each != MASK else 0.0 for each in range(VOCABULARY))
    found = judged_token(table_of("isd_topk", n=2, top=top), Split(favourite))
    assert [float(each == token) for each in range(VOCABULARY)] == pytest.approx(found, abs=EXACT)
    # One token with certainty: off by all that the target gives to others.
    assert 1 - TARGET[token] == pytest.approx(found[token] - TARGET[token], abs=EXACT)


def test_verifier_off(table_of: Tables) -> None:
    """Proposals that nobody refuses come out by their own law, and the token after them by the target's."""
    law = output(table_of("uno_unverified", b=2), Split(), 4)
    assert TARGET == pytest.approx(token_law(law, 1), abs=EXACT)
    assert DRAFT == pytest.approx(token_law(law, 2), abs=EXACT)
    assert TARGET == pytest.approx(token_law(law, 3), abs=EXACT)


@pytest.mark.parametrize(("quota", "off"), [(1, 0.0), (2, 0.5)])
def test_masks_filled_together_do_not_see_each_other(quota: int, off: float, table_of: Tables) -> None:
    """Of text that repeats each token, two masks filled in one pass break half; one after the other, none."""
    found = output(table_of("sdar_sequential", b=2, quota=quota), Copying(), 2)
    expected: dict[tuple[int, ...], float] = {(0, 0): 0.5, (1, 1): 0.5}
    apart = [abs(found.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in {*found, *expected}]
    distance = sum(apart) / 2
    assert off == pytest.approx(distance, abs=EXACT)
