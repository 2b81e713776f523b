"""The heads on a draft block's logits: the bias by the token before, the chance of acceptance, its calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.confidence_head import (
    CALIBRATION,
    ConfidenceHead,
    calibrate,
    calibration_error,
    read_temperatures,
    write_temperatures,
)
from fsm_spec.executor.models.markov_head import KINDS, MarkovHead
from fsm_spec.executor.models.weights import WeightReader

Tensor = torch.Tensor
RANK, HIDDEN, VOCAB = 3, 5, 7


def head_weights() -> dict[str, Tensor]:
    """Draw the weights of all heads, and the hidden states of four draft rows."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "markov_head.markov_w1.weight": draw(VOCAB, RANK),
        "markov_head.markov_w2.weight": draw(VOCAB, RANK),
        "markov_head.gate_proj.weight": draw(RANK, HIDDEN + RANK),
        "markov_head.gate_proj.bias": draw(RANK),
        "markov_head.joint_proj.weight": draw(3 * RANK, 2 * RANK + HIDDEN),
        "markov_head.joint_proj.bias": draw(3 * RANK),
        "confidence_head.proj.weight": draw(1, HIDDEN + RANK),
        "confidence_head.proj.bias": draw(1),
        "hidden": draw(4, HIDDEN),
    }


def plain_biases(kind: str, w: dict[str, Tensor], tokens: list[int]) -> list[list[float]]:
    """Compute the bias of each draft the obvious way, number by number."""
    state = [0.0] * RANK
    biases = []
    for token, hidden in zip(tokens, w["hidden"].tolist(), strict=True):
        embedded = w["markov_head.markov_w1.weight"][token].tolist()
        latent = embedded
        if kind != "vanilla":
            name = "gate_proj" if kind == "gated" else "joint_proj"
            read = [*hidden, *embedded] if kind == "gated" else [*state, *embedded, *hidden]
            matrix, bias = w[f"markov_head.{name}.weight"], w[f"markov_head.{name}.bias"]
            mixed = matrix @ torch.tensor(read, dtype=torch.float64) + bias
            if kind == "gated":
                latent = [s * e for s, e in zip(mixed.sigmoid().tolist(), embedded, strict=True)]
            else:
                gate, candidate = mixed[:RANK].sigmoid().tolist(), mixed[RANK : 2 * RANK].tanh().tolist()
                state = [g * s + (1 - g) * c for g, s, c in zip(gate, state, candidate, strict=True)]
                latent = mixed[2 * RANK :].tanh().tolist()
        rows = w["markov_head.markov_w2.weight"].tolist()
        biases.append([sum(a * b for a, b in zip(row, latent, strict=True)) for row in rows])
    return biases


@pytest.mark.parametrize("kind", KINDS)
def test_bias_follows_the_tokens_drafted_before(kind: str) -> None:
    """Step by step over a batch, the head gives the biases of its formula."""
    w = head_weights()
    head = MarkovHead(kind, RANK, HIDDEN, VOCAB, WeightReader(w, torch.float64, 1e-5))
    chains = [[1, 4, 4, 0], [6, 2, 3, 5]]
    state = head.start(2)
    for place in range(4):
        previous = torch.tensor([chain[place] for chain in chains])
        bias, state = head.step(state, previous, w["hidden"][place].expand(2, HIDDEN))
        expected = torch.tensor([plain_biases(kind, w, chain)[place] for chain in chains])
        torch.testing.assert_close(bias, expected, atol=1e-5, rtol=0)


def test_survival_is_the_product_of_confidences() -> None:
    """A later draft counts only if all before it were accepted; temperatures divide the logits first."""
    w = head_weights()
    reader = WeightReader(w, torch.float64, 1e-5)
    embedded = w["markov_head.markov_w1.weight"][[1, 4, 4, 0]]
    head = ConfidenceHead(reader, HIDDEN + RANK)
    logits = head.logits(w["hidden"], embedded)
    line = torch.cat((w["hidden"], embedded), 1) @ w["confidence_head.proj.weight"][0]
    torch.testing.assert_close(logits, (line + w["confidence_head.proj.bias"]).float(), atol=1e-5, rtol=0)
    expected, chance = [], 1.0
    for value, temperature in zip(logits.tolist(), [1.0, 2.0, 0.5, 4.0], strict=True):
        chance *= 1 / (1 + 2.718281828459045 ** (-value / temperature))
        expected.append(chance)
    calibrated = ConfidenceHead(reader, HIDDEN + RANK, torch.tensor([1.0, 2.0, 0.5, 4.0]))
    torch.testing.assert_close(calibrated.survival(logits[None])[0], torch.tensor(expected))
    alone = WeightReader(
        w | {"confidence_head.proj.weight": torch.ones(1, HIDDEN, dtype=torch.float64)}, torch.float64, 1e-5
    )
    without = ConfidenceHead(alone, HIDDEN).logits(w["hidden"], None)
    expected_sum = w["hidden"].sum(1) + w["confidence_head.proj.bias"]
    torch.testing.assert_close(without, expected_sum.float(), atol=1e-5, rtol=0)


def test_calibration_takes_overconfidence_back() -> None:
    """Rounds drawn from known chances, seen through logits three times too sharp, give temperatures near three."""
    generator = torch.Generator().manual_seed(1)
    true = torch.randn(4000, 3, generator=generator)
    alive = (torch.rand(4000, 3, generator=generator) < true.sigmoid()).cumprod(1)
    temperatures = calibrate(3 * true, alive.sum(1))
    # The last position lives in an eighth of the rounds only, so its temperature is found less sharply.
    assert all(2.5 < value < 3.6 for value in temperatures[:2].tolist()), temperatures
    assert temperatures[2] > 2

    def error(survival: Tensor) -> float:
        return sum(calibration_error(survival[:, k].double(), alive[:, k].double()) for k in range(3))

    raw = (3 * true).sigmoid().cumprod(1)
    assert error((3 * true / temperatures).sigmoid().cumprod(1)) < error(raw) / 3


def test_calibration_without_evidence_changes_nothing() -> None:
    """Where all temperatures err alike, logits stay as they are."""
    assert calibrate(torch.zeros(8, 2), torch.zeros(8)).tolist() == [1.0, 1.0]


def test_temperatures_lie_beside_the_checkpoint(tmp_path: Path) -> None:
    """Written once, read with every load; a broken file is an error and not full confidence."""
    assert read_temperatures(tmp_path, 2) is None
    write_temperatures(tmp_path, torch.tensor([1.5, 2.0]))
    found = read_temperatures(tmp_path, 2)
    assert found is not None
    assert found.tolist() == [1.5, 2.0]
    with pytest.raises(UserError, match="a list of 3 positive numbers; calibrate again"):
        read_temperatures(tmp_path, 3)
    (tmp_path / CALIBRATION).write_text('{"temperatures": [0, 1]}')
    with pytest.raises(UserError, match="a list of 2 positive numbers"):
        read_temperatures(tmp_path, 2)
