"""The block mask of a forward for a reader: runs of like rows, the cells they see, and an example of a tree.

The text stands in `show.py`'s output; `mask_drawing.py` draws the same as SVG. Both colour what is seen by its fate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fsm_spec.plan import Fate, ForwardPlan
    from fsm_spec.table import Table

# Up to so many rows the text shows each of them; beyond, a line stands for a run of like rows.
MOST_LINES: Final = 16
# Nodes of an example tree: enough to see siblings and cousins.
TEXT_NODES: Final = 12
SEEN: Final[dict[str, str]] = {"keep": "█", "provisional": "▓", "open": "▚", "scratch": "▒"}
UNSEEN: Final = "·"
# Matches lines of a drawing, and of the numbers above it; not the legend.
DRAWN: Final = r"[█▓▚▒]{2}|·|⋱|^\s+\d( \d)*$"
# A run that sees itself row by row, each up to itself.
STAIRS: Final = "◣"


@dataclass(frozen=True)
class Run:
    """Hold rows of one segment, in groups of one group: rows `first` to `first + count - 1` of the block."""

    name: str
    first: int
    count: int
    kv: Fate
    adapter: bool
    group: int = -1
    query: bool = True

    @property
    def label(self) -> str:
        """Name the run, with what sets its rows apart from others: `noise[2] adapter scratch`."""
        return f"{self.name} {'adapter ' if self.adapter else ''}{self.kv}{'' if self.query else ', K and V only'}"


@dataclass(frozen=True)
class Picture:
    """Hold the runs of a block and the mask over its rows, bool [rows, rows]; `parents` are an example tree's."""

    runs: tuple[Run, ...]
    mask: NDArray[np.bool_]
    parents: tuple[int, ...] = ()

    @property
    def fates(self) -> list[Fate]:
        """List the fate of every row."""
        return [run.kv for run in self.runs for _ in range(run.count)]


def picture(table: Table, plan: ForwardPlan, most_nodes: int) -> Picture:
    """Give what a forward's rows see of their block; of a tree an example with at most `most_nodes` nodes."""
    if plan.tree is None:
        runs = tuple(
            Run(each.name, each.first, each.max_count, each.kv, each.adapter, each.group, each.query)
            for each in plan.segments
            if each.max_count
        )
        # Rows without queries are seen and see nothing.
        asks = np.array([run.query for run in runs for _ in range(run.count)], dtype=np.bool_)
        return Picture(runs, plan.mask & asks[:, None])
    nodes = plan.segments[0]
    if plan.model is not None:
        # One level of a tree: no node sees another, and its ancestors lie in the slots of earlier forwards.
        run = Run(nodes.name, 0, nodes.max_count, nodes.kv, nodes.adapter)
        return Picture((run,), np.eye(nodes.max_count, dtype=np.bool_))
    walk = next((op for op in plan.operators if op.op == "walk"), None)
    grown = [op for known in table.forwards.values() for op in known.operators if op.op == "grow"]
    size = min(nodes.max_count, most_nodes)
    top = min([size, *(op.number("top") for op in grown)])
    parents = example_tree(size, top, walk.number("depth") if walk is not None else size)
    run = Run(nodes.name, 0, len(parents), nodes.kv, nodes.adapter)
    return Picture((run,), ancestors(parents), parents)


def example_tree(size: int, top: int, depth: int) -> tuple[int, ...]:
    """Grow a tree by its likeliest edges where each rank is half as likely as the one before.

    Gives the parent of each node, -1 for the root; nodes have at most `top` children, and depths end at `depth`.
    """
    parents, depths, children = [-1], [0], [0]
    costs = [0]
    while len(parents) < size:
        # An edge of rank r costs r + 1: the next child of each node is its likeliest one that is left.
        edges = [
            (costs[node] + children[node] + 1, depths[node] + 1, children[node], node)
            for node in range(len(parents))
            if children[node] < top and depths[node] < depth
        ]
        if not edges:
            break
        cost, level, _, node = min(edges)
        children[node] += 1
        parents.append(node)
        depths.append(level)
        children.append(0)
        costs.append(cost)
    return tuple(parents)


def ancestors(parents: tuple[int, ...]) -> NDArray[np.bool_]:
    """Give the mask under which a node sees itself and its ancestors, bool [nodes, nodes]."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


class Grouped(Protocol):
    """Be part of a group; -1 outside of groups."""

    @property
    def group(self) -> int:
        """Number the group."""


G = TypeVar("G", bound=Grouped)


def by_group(parts: Sequence[G]) -> list[list[G]]:
    """Put the parts of each group together."""
    groups: dict[int, list[G]] = {}
    for part in parts:
        groups.setdefault(part.group, []).append(part)
    return list(groups.values())


def repeated(groups: list[list[G]], most: int) -> list[list[G]]:
    """Give the groups to show: of more than `most` the first two and the last, which show the pattern."""
    return groups if len(groups) <= max(most, 3) else [*groups[:2], groups[-1]]


# Text ---------------------------------------------------------------------------------------------------------


def text(table: Table, plan: ForwardPlan) -> list[str]:
    """Draw a forward's block mask in characters: lines are rows that see, columns what they see."""
    if plan.rows < 2:
        return []
    shown = picture(table, plan, TEXT_NODES)
    if shown.parents:
        return _tree(shown, plan.rows)
    return _rows(shown) if len(shown.mask) <= MOST_LINES else _runs(shown)


def _head(shown: Picture, more: str = "") -> str:
    fates = {"keep", "provisional", "scratch", *shown.fates}
    kinds = ", ".join(f"{mark} {fate}" for fate, mark in SEEN.items() if fate in fates)
    before = ", open rows of before" if "open" in fates else ""
    return f"  block mask: a row sees all committed KV{before}, and of its block: {kinds}{more}"


def _cells(shown: Picture, row: int) -> str:
    cells = zip(shown.mask[row], shown.fates, strict=True)
    return "".join((SEEN[fate] if seen else UNSEEN) * 2 for seen, fate in cells)


def _rows(shown: Picture) -> list[str]:
    labels = [run.label if row == 0 else "" for run in shown.runs for row in range(run.count)]
    return [_head(shown), *_labelled(shown, labels)]


def _labelled(shown: Picture, labels: list[str]) -> list[str]:
    """Draw every cell; columns are headed by the last digit of their row's number."""
    width = max(map(len, labels))
    lines = [f"    {'':<{width + 5}}" + "".join(f"{column % 10:>2}" for column in range(len(labels)))]
    return lines + [
        f"    {row:>2}  {label:<{width}} {_cells(shown, row)}" for row, label in enumerate(labels)
    ]


def _tree(shown: Picture, rows: int) -> list[str]:
    size = len(shown.parents)
    which = f"the first {size} of {rows} nodes" if size < rows else f"{size} nodes"
    lines = [_head(shown), f"  of an example tree, {which}, each rank half as likely as the one before:"]
    labels = ["root" if parent < 0 else f"below {parent}" for parent in shown.parents]
    return lines + _labelled(shown, labels)


def _runs(shown: Picture) -> list[str]:
    """Give one line and one column to each segment of each group; repeated groups are left out."""
    groups = by_group(shown.runs)
    runs = [run for group in repeated(groups, MOST_LINES // len(groups[0])) for run in group]
    gap = len(groups[0]) * 2 if len(runs) < len(shown.runs) else len(runs)
    lines = [_head(shown, f", {STAIRS} up to itself"), "  columns stand in the order of the lines"]
    spans = [
        str(run.first) if run.count == 1 else f"{run.first}..{run.first + run.count - 1}" for run in runs
    ]
    width, name = max(map(len, spans)), max(len(run.label) for run in runs)
    for index, (span, run) in enumerate(zip(spans, runs, strict=True)):
        if index == gap:
            lines.append(f"    {'...':<{width}}  {'':<{name}}  {'⋮ ' * gap}⋱")
        cells = [_cell(shown, run, other) for other in runs]
        seen = " ".join([*cells[:gap], *(["⋯"] if gap < len(runs) else []), *cells[gap:]])
        lines.append(f"    {span:<{width}}  {run.label:<{name}}  {seen}")
    return lines


def _cell(shown: Picture, run: Run, other: Run) -> str:
    """Say in one character what the rows of a run see of another: all, each up to itself, or nothing."""
    part = shown.mask[run.first : run.first + run.count, other.first : other.first + other.count]
    if not part.any():
        return UNSEEN
    return SEEN[other.kv] if part.all() else STAIRS
