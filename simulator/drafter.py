"""A draft model as a cost: forwards that run before each round, beside the target model, in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from fsm_spec.errors import UserError
from fsm_spec.simulator.model import ModelShape

FORM = "LAYERS:STEPS[:ROWS[:VOCABULARY]], such as 1:3 for a head of one layer that runs three times"


@dataclass(frozen=True)
class Drafter:
    """Describe a drafter built from layers of the target's shape, as EAGLE and DFlash heads are.

    It runs `steps` times before each round with `rows` rows a request, and ends in a head over `vocabulary` words (0:
    the target's).
    """

    layers: int
    steps: int
    rows: int = 1
    vocabulary: int = 0

    def parameters(self, model: ModelShape) -> int:
        """Return the weights that a forward reads: layers, the projection of three features, and the head."""
        words = self.vocabulary or model.vocab_size
        fused = 3 * model.hidden_size * model.hidden_size
        return self.layers * model.layer_gemm_parameters + fused + words * model.hidden_size

    def weight_bytes(self, model: ModelShape) -> int:
        """Return the memory it takes beside the target; a full head is the target's own."""
        own = self.parameters(model) - (0 if self.vocabulary else model.head_parameters)
        return 2 * own

    def describe(self) -> str:
        """Return the option that gives this drafter."""
        return f"{self.layers}:{self.steps}:{self.rows}:{self.vocabulary}"


def parse_drafter(text: str) -> Drafter:
    """Read `LAYERS:STEPS[:ROWS[:VOCABULARY]]`; raises UserError."""
    words = text.strip().split(":")
    if not 2 <= len(words) <= 4 or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f'--drafter "{text}" is unknown; write {FORM}')
    numbers = [int(word) for word in words]
    if any(number < 1 for number in numbers[:3]) or max(numbers) > 1_000_000:
        raise UserError(f'--drafter "{text}" has a number outside 1 to 1000000; write {FORM}')
    return Drafter(*numbers)
