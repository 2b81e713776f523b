"""DSpark's confidence head: the chance that a draft is accepted, given that those before it were; and its calibration.

Names and formula: `AcceptRatePredictor` in `deepspec/modeling/dspark/common.py` of deepseek-ai/DeepSpec; calibration
after the paper (sequential temperature scaling: positions from left to right, each by a grid search for the least
calibration error of the cumulated product). No published file holds the temperatures, so ours is named here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.config import read_json
from fsm_spec.executor.models.weights import WeightReader

Tensor = torch.Tensor

CALIBRATION = "confidence_calibration.json"
# Temperatures tried, 0.1 .. 10 in equal ratios.
_GRID = tuple(10 ** (step / 25) for step in range(-25, 26))


class ConfidenceHead:
    """Predict acceptance from a draft row's state, and the embedding of the token before it where it was trained so.

    `temperatures` [positions] divide the logits; None leaves them as they are.
    """

    def __init__(self, reader: WeightReader, inputs: int, temperatures: Tensor | None = None) -> None:
        self.inputs = inputs
        self.weight = reader.matrix("confidence_head.proj.weight", 1, inputs)[0].float()
        self.bias = reader.bias("confidence_head.proj", 1).float()
        self.temperatures = temperatures

    def logits(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Score drafts, [..., hidden] and W1 of the tokens before [..., rank] -> [...] float32."""
        read = hidden.float() if embedded is None else torch.cat((hidden.float(), embedded.float()), -1)
        return read @ self.weight + self.bias

    def survival(self, logits: Tensor) -> Tensor:
        """Give the chance that each draft and all before it are accepted, logits [n, g] -> [n, g]."""
        if self.temperatures is not None:
            logits = logits / self.temperatures[: logits.shape[1]]
        return logits.sigmoid().cumprod(1)


def calibrate(logits: Tensor, accepted: Tensor, bins: int = 10) -> Tensor:
    """Fit a temperature a position, from left to right -> [g] float32.

    `logits` [n, g] are the head's of n rounds, `accepted` [n] the drafts that each round accepted.
    Of equal errors the temperature nearest to 1 wins, so that a position without evidence stays as it is.
    """
    before = torch.ones(len(logits), dtype=torch.float64)
    grid = sorted(_GRID, key=lambda value: abs(math.log(value)))
    chosen = []
    for position in range(logits.shape[1]):
        hit = (accepted > position).double()
        line = logits[:, position].double()
        best = min(grid, key=lambda value: calibration_error(before * (line / value).sigmoid(), hit, bins))
        before = before * (line / best).sigmoid()
        chosen.append(best)
    return torch.tensor(chosen, dtype=torch.float32)


def calibration_error(predicted: Tensor, hit: Tensor, bins: int = 10) -> float:
    """Measure the expected calibration error over equal bins: mean |predicted - observed|, weighted by count."""
    place = (predicted * bins).long().clamp_(0, bins - 1)
    zeros = torch.zeros(bins, dtype=torch.float64)
    gap = zeros.index_add(0, place, predicted - hit).abs().sum()
    return float(gap) / len(predicted)


def read_temperatures(folder: Path, positions: int) -> Tensor | None:
    """Read the temperatures beside a checkpoint, None where nobody has calibrated it."""
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    values = read_json(path).get("temperatures")
    if (
        not isinstance(values, list)
        or len(values) < positions
        or not all(isinstance(value, int | float) and value > 0 for value in values)
    ):
        raise UserError(
            f'"{path}": "temperatures" has to be a list of {positions} positive numbers; calibrate again.'
        )
    return torch.tensor(values, dtype=torch.float32)


def write_temperatures(folder: Path, temperatures: Tensor) -> None:
    """Write temperatures beside a checkpoint."""
    text = json.dumps({"temperatures": temperatures.tolist()})
    (folder / CALIBRATION).write_text(text + "\n", encoding="utf-8")
