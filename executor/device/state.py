"""What the device holds of requests: a line each, with columns, carries, pages, sampling parameters and text.

A request has one line while it is admitted. Two lines are nobody's: padding reads the first, which is never written
and always at its end, and what dead members of a launch would write goes to the second, which is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fsm_spec.budget import Rate
from fsm_spec.executor.carry import EMPTY
from fsm_spec.executor.synthetic import Laws
from fsm_spec.kernels.fixed.adjust import AdjustColumns
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.pages import physical_slots, resize_pages
from fsm_spec.kernels.tree import NO_NODE, Tree
from fsm_spec.table import END, CarryPlan, Table

# Where a line has fewer stop tokens than there is room for: no token of any vocabulary.
NO_STOP_ID = -3
# Stop tokens that a request may have; a model has a few end tokens, a user adds a few.
STOP_IDS = 16
# Tokens whose logits a request may bias: what the server takes.
BIAS_IDS = 1024
TREE_PARTS = ("tokens", "parents", "depths", "scores", "count")


@dataclass(frozen=True)
class Sizes:
    """Size the device's tensors; `widths` are those of hidden states, by the name of the carry that holds them."""

    lines: int
    pages: int
    page_size: int
    # Most tokens of a text, and most pages of a request.
    text: int
    table: int
    vocabulary: int
    widths: Mapping[str, int] = field(default_factory=dict)
    real: torch.dtype = torch.float32
    wide: torch.dtype = torch.float32


class DeviceState:
    """Hold all tensors of requests, each with `lines` + 2 rows; none is ever bound anew, so that graphs stay valid."""

    def __init__(
        self,
        table: Table,
        carry: Sequence[CarryPlan],
        sizes: Sizes,
        device: torch.device | str,
        synthetic: Laws | None = None,
    ) -> None:
        self.sizes = sizes
        # Laws of counts that are drawn in place of what operators find; none but for measuring.
        self.synthetic = synthetic or Laws(None, None)
        self.device = torch.device(device)
        self.padding, self.dump = sizes.lines, sizes.lines + 1
        self.columns = {name: self._full((), 0, torch.int32) for name in table.column_names}
        self.columns["state"].fill_(table.codes[END])
        self.tokens: dict[str, Tensor] = {}
        self.wide: dict[str, Tensor] = {}
        self.trees: dict[str, Tree] = {}
        for plan in carry:
            self._add(plan)
        self.text = self._full((sizes.text + 1,), 0, torch.int64)
        self.block_table = self._full((sizes.table,), 0, torch.int32)
        self.held = self._full((), 0, torch.int32)
        # A stack of free pages, the next one last; one place more takes what is dropped.
        self.free = torch.arange(sizes.pages, -1, -1, dtype=torch.int32, device=device).roll(-1)
        self.free_count = torch.full((1,), sizes.pages, dtype=torch.int64, device=device)
        self.sampling = SamplingColumns(
            temperature=self._full((), 0.0, torch.float64),
            top_k=self._full((), 0, torch.int64),
            top_p=self._full((), 1.0, torch.float64),
            min_p=self._full((), 0.0, torch.float64),
            seeds=self._full((), 0, torch.int64),
        )
        self.stop_ids = self._full((STOP_IDS,), NO_STOP_ID, torch.int64)
        self.controls = AdjustColumns(
            presence=self._full((), 0.0, torch.float64),
            frequency=self._full((), 0.0, torch.float64),
            repetition=self._full((), 1.0, torch.float64),
            bias_ids=self._full((BIAS_IDS,), 0, torch.int64),
            bias=self._full((BIAS_IDS,), 0.0, torch.float64),
        )
        # Steps a second of a launch by its rows, which verify budgets weigh: those of no budget at first.
        self.rates = torch.arange(
            sizes.lines * (1 + _most_granted(table)) + 1, dtype=torch.float64, device=self.device
        )
        # Tokens before which no stop token is emitted.
        self.least = self._full((), 0, torch.int64)
        # Which tokens grammars allow to each row of a launch, by bits; made when the first one comes.
        self.allowed: Tensor | None = None

    def _full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((self.sizes.lines + 2, *shape), value, dtype=dtype, device=self.device)

    def weigh(self, rate: Rate | None) -> None:
        """Let verify budgets weigh launches by that rate; without one every draft is worth its row."""
        rows = np.arange(len(self.rates))
        self.rates.copy_(torch.from_numpy(rows.astype(np.float64) if rate is None else rate(rows)))

    def _add(self, plan: CarryPlan) -> None:
        """Make the tensors of a carry."""
        shape = tuple(self.sizes.vocabulary if size is None else size for size in plan.shape)
        if plan.type == "tree":
            places = self._full(shape, NO_NODE, torch.int64)
            scores = self._full(shape, -torch.inf, self.sizes.real)
            count = self._full((), 0, torch.int64)
            self.trees[plan.name] = Tree(places, places.clone(), torch.zeros_like(places), scores, count)
        elif plan.type == "token":
            self.tokens[plan.name] = self._full(shape, EMPTY, torch.int64)
        elif plan.type == "feature":
            self.wide[plan.name] = self._full((shape[0], self.sizes.widths[plan.name]), 0.0, self.sizes.wide)
        else:
            self.wide[plan.name] = self._full(shape, 0.0, self.sizes.real)

    def take(self, lines: Tensor) -> dict[str, Tensor]:
        """Read the columns of some lines, int64 [n] -> int32 [n] each."""
        return {name: values.index_select(0, lines) for name, values in self.columns.items()}

    def sampling_of(self, lines: Tensor) -> SamplingColumns:
        """Read the sampling parameters and seeds of some lines."""
        return SamplingColumns(*(column.index_select(0, lines) for column in self.sampling))

    def controls_of(self, lines: Tensor) -> AdjustColumns:
        """Read the adjustments of some lines."""
        return AdjustColumns(*(column.index_select(0, lines) for column in self.controls))

    def put_controls(self, line: int, numbers: Tensor) -> None:
        """Write what the request of a line asks of its logits: int64 [4 + 2 * BIAS_IDS], reals by their bits."""
        heads, ids, values = numbers[:4], numbers[4 : 4 + BIAS_IDS], numbers[4 + BIAS_IDS :]
        for place, column in enumerate(self.controls[:3]):
            column[line].copy_(heads[place : place + 1].view(torch.float64)[0])
        self.least[line].copy_(heads[3])
        self.controls.bias_ids[line].copy_(ids)
        self.controls.bias[line].copy_(values.view(torch.float64))

    def mask_bytes(self, rows: int) -> int:
        """Count the bytes of the masks of grammars, for so many rows a line."""
        return (self.sizes.lines + 2) * rows * self._mask_words() * 4

    def _mask_words(self) -> int:
        """Count the int32 words of a mask; two make one of the numbers that it is sent in."""
        return 2 * -(-self.sizes.vocabulary // 64)

    def hold_masks(self, rows: int) -> None:
        """Make room for masks of so many rows a line, if there is none."""
        if self.allowed is None:
            self.allowed = self._full((rows, self._mask_words()), -1, torch.int32)

    def allow(self, lines: Tensor, words: Tensor) -> None:
        """Let rows of lines int64 [m] give the tokens whose bits are set in int64 [m, r, w], and all others any."""
        assert self.allowed is not None, "masks have room"
        self.allowed.fill_(-1)
        self.allowed[:, : words.shape[1]].index_copy_(0, lines, words.view(torch.int32))

    def tree_of(self, name: str, lines: Tensor) -> Tree:
        """Read the trees of some lines."""
        tree = self.trees[name]
        return Tree(*(getattr(tree, part).index_select(0, lines) for part in TREE_PARTS))

    def put_tree(self, name: str, lines: Tensor, tree: Tree) -> None:
        """Write trees to lines; one with less room than the carry leaves its rest empty."""
        held = self.trees[name]
        for part in TREE_PARTS:
            into, values = getattr(held, part), getattr(tree, part)
            if part == "count":
                into.index_copy_(0, lines, values)
            else:
                into[:, : values.shape[1]].index_copy_(0, lines, values.to(into.dtype))

    def bytes(self) -> int:
        """Count the bytes of all tensors."""
        trees = [getattr(tree, part) for tree in self.trees.values() for part in TREE_PARTS]
        held = [*self.columns.values(), *self.tokens.values(), *self.wide.values(), *trees, *self.sampling]
        held += [
            *self.controls,
            self.rates,
            self.least,
            self.text,
            self.block_table,
            self.held,
            self.free,
            self.free_count,
            self.stop_ids,
            *([] if self.allowed is None else [self.allowed]),
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    # Pages -----------------------------------------------------------------------------------------------------

    def resize(self, lines: Tensor, stays: Tensor, starts: Tensor, want: Tensor) -> None:
        """Let lines int64 [m] hold `want` int32 [m] pages: what is too much returns before anything is taken.

        Of the old table the first `stays` pages are not given back, of the new one the first `starts` not taken.
        The host's scheduler has counted that enough pages are free. Each line stands once, but for the dump.
        """
        resize_pages(lines, stays, starts, want, self.held, self.block_table, self.free, self.free_count)

    def give_back(self, pages: Tensor) -> None:
        """Put pages int64 [m] that no line names any more on the list of free ones."""
        into = self.free_count + torch.arange(len(pages), device=pages.device)
        self.free.index_copy_(0, into, pages.int())
        self.free_count.add_(len(pages))

    def taken(self, count: int) -> Tensor:
        """Tell the pages that the last resize handed out, int64 [count], line after line, each from its front on."""
        last = self.free_count + torch.arange(count - 1, -1, -1, device=self.device)
        return self.free.index_select(0, last).long()

    def physical(self, lines: Tensor, slots: Tensor, live: Tensor) -> Tensor:
        """Map slots [n, m] of requests to the cache's, int32; -1 where not live."""
        found: Tensor = physical_slots(self.block_table, lines, slots, live, self.sizes.page_size)
        return found


def _most_granted(table: Table) -> int:
    """Give the most drafts that a budget of a table may grant a request; 0 where it has none."""
    operators = (operator for plan in table.forwards.values() for operator in plan.operators)
    return max((each.number("size") for each in operators if each.op == "budget"), default=0)
