"""A draft model as a cost, beside the target model, in 16 bits.

Where a spec has draft models, each launch of a state whose forward runs on one is a forward, of the rows that are live.
Where it has none, so many forwards run before each round: so heads are priced that a spec does not describe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fsm_spec.errors import UserError
from fsm_spec.simulator.model import ModelShape
from fsm_spec.table import Table
from fsm_spec.wording import counted

FORM = "LAYERS:STEPS[:ROWS[:VOCABULARY]], such as 1:3 for a head of one layer that runs three times"
COUNTED = "LAYERS, such as 9; the spec says when it runs, and with which rows"


@dataclass(frozen=True)
class Drafter:
    """Describe a drafter built from layers of the target's shape, as EAGLE and DFlash heads are.

    It runs `steps` times before each round with `rows` rows a request (0: where the spec says, with its rows), and ends
    in a head over `vocabulary` words (0: the target's).
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
        """Return the option that gives this drafter, or what it has where the spec says the rest."""
        if not self.steps:
            words = f" and {counted(self.vocabulary, 'word')}" if self.vocabulary else ""
            return f"{counted(self.layers, 'layer')}{words}, forwards and rows as the spec has them"
        return f"{self.layers}:{self.steps}:{self.rows}:{self.vocabulary}"


# Layers of a draft model where none are given, as published: DFlash and DSpark for Qwen3 (arXiv 2602.06036), EAGLE-3
# (arXiv 2503.01840), and the MTP module of DeepSeek-V3 (arXiv 2412.19437, section 2.2).
LAYERS: Final = {"context_head": 5, "feature_head": 1, "token_heads": 1}


def drafter_of(table: Table) -> Drafter | None:
    """Give the cost of a table's draft model as published; None where it has none.

    Raises UserError for a language model, which may have any size.
    """
    if not table.models:
        return None
    kind = next(iter(table.models.values())).kind
    if kind not in LAYERS:
        raise UserError(f"{table.name} drafts with a {kind}; give --drafter {COUNTED}")
    return Drafter(LAYERS[kind], 0)


def parse_drafter(text: str, table: Table) -> Drafter:
    """Read `LAYERS:STEPS[:ROWS[:VOCABULARY]]`; raises UserError.

    Of a table with draft models STEPS and ROWS are its own, so that LAYERS is enough.
    """
    words, form = text.strip().split(":"), COUNTED if table.models else FORM
    if not (1 if table.models else 2) <= len(words) <= 4 or not all(
        word.isascii() and word.isdigit() for word in words
    ):
        raise UserError(f'--drafter "{text}" is unknown; write {form}')
    numbers = [int(word) for word in words]
    if any(number < 1 for number in numbers[:3]) or max(numbers) > 1_000_000:
        raise UserError(f'--drafter "{text}" has a number outside 1 to 1000000; write {form}')
    drafter = Drafter(*numbers) if len(numbers) > 1 else Drafter(numbers[0], 0)
    return replace(drafter, steps=0, rows=1) if table.models else drafter
