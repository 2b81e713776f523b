"""Synthetic acceptance: how many drafts stand is drawn by given chances, in place of the target's judgement.

For measuring: a round costs what it costs, and makes as much progress as the chances say, on whatever model. The rule
of a spec's operator runs all the same, and what it finds is put aside; the tokens that come out are not the target's.
Engines have the same for benchmarks (vLLM's `rejection_sample_method: synthetic`, SGLang's SGLANG_SIMULATE_ACC_LEN).
The chances are those of the simulator's `--accept` and `--unmask` and are read by the same function, so that one set
of them means one law of counts there and here; draws are named by seed and position, as all of the executor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.checker.chances import (
    SYNTHETIC_ACCEPTANCE,
    SYNTHETIC_UNMASKING,
    Chances,
    Option,
    parse_chances,
    require_drafts,
    require_masks,
)
from fsm_spec.counts import is_known, most_drafts
from fsm_spec.errors import UserError
from fsm_spec.kernels.randomness import salted
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.walk import Walk, path_of, walked
from fsm_spec.plan import OperatorPlan
from fsm_spec.table import Table

NOT_THE_TARGETS: Final = (
    "the tokens are not the target's: how many drafts stand is drawn by chances, for measuring"
)
# The rule of `unmask` that fills as many masks as it is told, the surest first.
BY_QUOTA: Final = "unmask:schedule"
# Rules of `accept` whose next token is the most probable one, whatever the temperature.
_ARGMAX: Final = ("greedy", "topk")


Constant = Callable[[NDArray[np.float64]], Tensor]


class Draws(Protocol):
    """Draw for n requests, as a runner does."""

    def count(self, law: Tensor, names: Tensor) -> Tensor:
        """Draw by a law of counts float64 [k + 1] -> int64 [n]; `names` int64 [n] name the draws."""

    def token(self, logits: Tensor, positions: Tensor, rule: str) -> Tensor:
        """Draw the target's token by logits [n, V] -> int64 [n]; `rule` is one of `sample`."""


# Gives of one row of each request, int64 [n], the logits [n, V] and the position int64 [n] of its token.
Pick = Callable[[Tensor], tuple[Tensor, Tensor]]


def row_of(logits: Tensor, positions: Tensor) -> Pick:
    """Pick rows of logits [n, r, V] and positions [n, r]."""

    def pick(row: Tensor) -> tuple[Tensor, Tensor]:
        member = torch.arange(len(row), device=row.device)
        return logits[member, row], positions[member, row]

    return pick


@dataclass(frozen=True)
class Laws:
    """Hold the laws of the counts that are drawn, float64 [k + 1] each; None where an operator judges by itself."""

    accepted: Tensor | None
    filled: Tensor | None

    def decides(self, operator: OperatorPlan) -> bool:
        """Tell whether the counts of an operator are drawn by these laws."""
        law = self.filled if operator.op == "unmask" else self.accepted
        return law is not None and not all(map(is_known, operator.counts))

    def accept(
        self, live: Tensor, first: Tensor, rule: str, pick: Pick, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """Accept the first of `live` drafts int64 [n] -> (accepted [n], next [n]); `first` names the draws."""
        assert self.accepted is not None, "the caller has asked"
        accepted = torch.minimum(draws.count(self.accepted, first), live).clamp(min=0)
        return accepted, draws.token(*pick(accepted), "argmax" if rule in _ARGMAX else "law")

    def walk(self, tree: Tree, first: Tensor, deepest: int, pick: Pick, draws: Draws) -> Walk:
        """Walk to a node of the depth that is drawn, or to the deepest of a tree that has none."""
        assert self.accepted is not None, "the caller has asked"
        path = path_of(tree, draws.count(self.accepted, first), deepest)
        end = path.amax(1)  # nodes stand behind their parents
        return walked(tree, path, draws.token(*pick(end), "law").unsqueeze(1))

    def quota(self, left: Tensor, first: Tensor, draws: Draws) -> Tensor:
        """Say how many of `left` masks int64 [n] are filled: the surest, and as many more as are drawn."""
        assert self.filled is not None, "the caller has asked"
        return 1 + draws.count(self.filled, salted(first, left))


@dataclass(frozen=True)
class Synthetic:
    """Hold the chances by which counts are drawn, and the most drafts and masks that they are of."""

    acceptance: Chances | None
    unmasking: Chances | None
    drafts: int
    masks: int

    def laws(self, constant: Constant = torch.from_numpy) -> Laws:
        """Lay the laws of both counts out; `constant` makes a tensor where they are to lie."""
        given = ((self.acceptance, self.drafts), (self.unmasking, self.masks))
        return Laws(*(_law(chances, most, constant) for chances, most in given))

    def describe(self) -> dict[str, str]:
        """Name the chances by the count that they are of: `acceptance`, `unmasking`."""
        given = {"acceptance": self.acceptance, "unmasking": self.unmasking}
        return {name: chances.describe() for name, chances in given.items() if chances is not None}

    def warning(self) -> str:
        """Say what it means, in a sentence."""
        options = " ".join(f"--synthetic-{name} {chances}" for name, chances in self.describe().items())
        return f"{options}: {NOT_THE_TARGETS}"


def synthetic_of(acceptance: str | None, unmasking: str | None, table: Table) -> Synthetic | None:
    """Read `--synthetic-acceptance` and `--synthetic-unmasking`; None without either.

    `table` is of the largest size of a policy's tiers. Raises UserError for chances that are none, that do not fit the
    spec, or that would have no effect on it.
    """
    if acceptance is None and unmasking is None:
        return None
    drafts, masks = most_drafts(table, "accept"), most_drafts(table, "unmask")
    accepted = _parse(acceptance, SYNTHETIC_ACCEPTANCE)
    filled = _parse(unmasking, SYNTHETIC_UNMASKING)
    if accepted is not None and accepted.form == "each":
        require_drafts(len(accepted.rates), drafts, table.name, SYNTHETIC_ACCEPTANCE.name)
    if accepted is not None and not drafts:
        raise UserError(_no_effect(SYNTHETIC_ACCEPTANCE, f"{table.name} judges 0 drafts"))
    if filled is not None and not masks:
        raise UserError(_no_effect(SYNTHETIC_UNMASKING, f"{table.name} fills no masks by confidence"))
    if filled is not None and filled.form == "each":
        require_masks(len(filled.rates), masks, SYNTHETIC_UNMASKING.name)
    return Synthetic(accepted, filled, drafts, masks)


def refuse_grammar() -> None:
    """Raise UserError for a request that follows a grammar: what is drawn does not ask which tokens it allows."""
    raise UserError(
        "a grammar cannot be kept where acceptance is synthetic, as drafts stand unjudged; leave it out, or start "
        "without --synthetic-acceptance"
    )


def _no_effect(option: Option, why: str) -> str:
    return f"{option.name} would have no effect, because {why}; leave it out"


def _parse(text: str | None, option: Option) -> Chances | None:
    return None if text is None else parse_chances(text, option)


def _law(chances: Chances | None, most: int, constant: Constant) -> Tensor | None:
    return None if chances is None else constant(np.array(chances.law(most), np.float64))
