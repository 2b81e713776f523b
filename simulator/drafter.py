"""A draft model as a cost: forwards that run before each round, beside the target model, in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.simulator.model import ModelShape
from fsm_spec.table import Row, Table

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


# Layers of a draft model where none are given, as published: DFlash and DSpark for Qwen3 (arXiv 2602.06036), EAGLE-3
# (arXiv 2503.01840), and the MTP module of DeepSeek-V3 (arXiv 2412.19437, section 2.2).
LAYERS: Final = {"context_head": 5, "feature_head": 1, "token_heads": 1}
_MOST_STEPS: Final = 1_000


def drafter_of(table: Table) -> Drafter | None:
    """Derive the cost of a table's draft model from its rounds; None where it has none.

    Raises UserError for a language model, which may have any size.
    """
    if not table.models:
        return None
    kind = next(iter(table.models.values())).kind
    if kind not in LAYERS:
        raise UserError(f"{table.name} drafts with a {kind}; give --drafter {FORM}")
    rows = max(
        sum(segment.max_count for segment in plan.segments if segment.kv != "keep")
        for plan in table.forwards.values()
        if plan.model is not None
    )
    return Drafter(LAYERS[kind], draft_steps(table), max(1, rows))


def draft_steps(table: Table) -> int:
    """Count the forwards of draft models in a round, from the start state to the target's first."""
    values = table.new_request(1, 1)
    for column in table.columns:
        values[column.name] = evaluate(column.init, values)
    state, steps = table.start, 0
    while (
        steps < _MOST_STEPS and state.forward is not None and table.forwards[state.forward].model is not None
    ):
        steps += 1
        row = _taken(table, state.name, values)
        values |= {
            name: evaluate(value, values | _least(table, state.name, values)) for name, value in row.sets
        }
        state = table.state(row.target)
    return steps


def _least(table: Table, event: str, values: dict[str, int]) -> dict[str, int]:
    """Give the arguments of an event their least values."""
    return {arg.name: evaluate(arg.low, values) for arg in table.events[event].args}


def _taken(table: Table, event: str, values: dict[str, int]) -> Row:
    """Choose the row of an event by its guards."""
    known = values | _least(table, event, values)
    return next(row for row in table.rows_of(event) if evaluate(row.guard, known))


def parse_drafter(text: str) -> Drafter:
    """Read `LAYERS:STEPS[:ROWS[:VOCABULARY]]`; raises UserError."""
    words = text.strip().split(":")
    if not 2 <= len(words) <= 4 or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f'--drafter "{text}" is unknown; write {FORM}')
    numbers = [int(word) for word in words]
    if any(number < 1 for number in numbers[:3]) or max(numbers) > 1_000_000:
        raise UserError(f'--drafter "{text}" has a number outside 1 to 1000000; write {FORM}')
    return Drafter(*numbers)
