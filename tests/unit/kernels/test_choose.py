"""The counter chooser: inversion of the cumulated law, exact support, one number a key."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.randomness import Purpose, uniform

CHOOSER = CounterChooser()


def keys(count: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return seeds and positions of that many draws of one request."""
    return torch.full((count,), seed), torch.arange(count)


@pytest.mark.parametrize("width", [2, 7, 256, 257, 512, 1000])
def test_batch_equals_plain(width: int) -> None:
    """Both readings invert the same cumulated law, for narrow laws and for laws of several blocks."""
    torch.manual_seed(width)
    law = torch.rand(50, width, dtype=torch.float64) * (torch.rand(50, width) < 0.3)
    law[:, width // 2] += 0.1
    seed, position = keys(50)
    tokens = CHOOSER.choose(law, seed, position, Purpose.DRAFT)
    expected = [CHOOSER.choose_one(row, Key(5, at, Purpose.DRAFT)) for at, row in enumerate(law.tolist())]
    assert expected == tokens.tolist()
    assert bool((law.gather(1, tokens.unsqueeze(1)) > 0).all())


@pytest.mark.parametrize("width", [3, 300])
def test_point_mass_is_always_taken(width: int) -> None:
    """A greedy law gives its token whatever the number drawn, so greedy rows need no draw."""
    seed, position = keys(500)
    law = torch.zeros(500, width)
    law[:, width - 1] = 1e-30
    assert bool((CHOOSER.choose(law, seed, position, Purpose.TARGET) == width - 1).all())


def test_law_of_draws() -> None:
    """Draws have the law's frequencies: chi-square at error rate 1e-4, two tests, seed fixed."""
    for width in (4, 600):
        law = torch.zeros(width, dtype=torch.float64)
        places = torch.tensor([0, 1, width // 2, width - 1])
        law[places] = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        seed, position = keys(20_000)
        tokens = CHOOSER.choose(law.expand(20_000, width), seed, position, Purpose.TARGET)
        counts = torch.bincount(tokens, minlength=width)[places]
        assert stats.chisquare(counts.numpy(), (law[places] * 20_000).numpy()).pvalue > 1e-4


def test_mass_need_not_be_one() -> None:
    """Only the proportions of the law matter."""
    law = torch.rand(20, 9, dtype=torch.float64)
    seed, position = keys(20)
    once = CHOOSER.choose(law, seed, position, Purpose.TARGET)
    assert once.equal(CHOOSER.choose(law * 8, seed, position, Purpose.TARGET))


def test_seed_is_honoured() -> None:
    """Another seed draws other tokens; the same seed draws the same (D13)."""
    law = torch.ones(64, 50)
    drawn = [CHOOSER.choose(law, *keys(64, seed), Purpose.TARGET) for seed in (1, 2, 1)]
    assert drawn[0].equal(drawn[2])
    assert not drawn[0].equal(drawn[1])


def test_verdict_is_below_chance() -> None:
    """On the law (accept, reject) the first outcome is `u < chance`, the test of the literature."""
    seed, position = keys(300)
    chance = torch.linspace(0, 1, 300, dtype=torch.float64)
    verdict = CHOOSER.choose(torch.stack([chance, 1 - chance], 1), seed, position, Purpose.ACCEPT)
    assert (uniform(seed, position, Purpose.ACCEPT) < chance).equal(verdict == 0)


@pytest.mark.parametrize("width", [3, 700])
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_no_mass_is_an_error(width: int, value: float) -> None:
    """A law of zeros or NaN is refused, not drawn as token 0 or an id outside the vocabulary."""
    law = torch.full((2, width), value)
    law[0] = 1.0
    with pytest.raises(ValueError, match="row 1 has no mass"):
        CHOOSER.choose(law, *keys(2), Purpose.TARGET)
    with pytest.raises(ValueError, match="position 3 has no mass"):
        CHOOSER.choose_one([value] * width, Key(1, 3, Purpose.TARGET))
