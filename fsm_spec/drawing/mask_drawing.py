"""Block masks of a spec as one SVG that stands alone: a panel for each forward, cells coloured by what is seen.

Rows see, columns are seen. Long runs of like rows and repeated groups are cut where a gap is drawn, so that a
block of a thousand rows is as readable as one of ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fsm_spec.drawing.block_mask import Picture, Run, by_group, picture, repeated
from fsm_spec.drawing.layout import MARGIN
from fsm_spec.drawing.state_drawing import FAINT, INK, svg_head
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsm_spec.plan import ForwardPlan, SegmentPlan
    from fsm_spec.table import Table

# Light enough for print, apart from each other without colour sight: a blue, a green, a violet, an amber.
FATES: Final = {"keep": "#2b6cb0", "provisional": "#38a169", "open": "#9f7aea", "scratch": "#ecc94b"}
MEANING: Final = {
    "keep": "keep: committed",
    "provisional": "provisional: kept as far as accepted",
    "open": "open: seen until the round ends",
    "scratch": "scratch: dropped",
}
# Stripes over the colour of the fate.
ADAPTER: Final = (
    '<defs><pattern id="fsm-adapter" width="5" height="5" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="2" height="5" fill="{INK}" fill-opacity="0.55"/></pattern></defs>'
)
CELL: Final = 14
UNSEEN: Final = "#edf2f7"
CACHE: Final = "#a0aec0"
# Groups, rows of a run, and nodes of a tree that are drawn; more show nothing new.
MOST_GROUPS, MOST_RUN, MOST_NODES = 4, 8, 32
GAP: Final = 7
# Width of the column that stands for committed KV, and of a character of code.
CACHE_WIDTH, CODE = 22, 6.7


@dataclass(frozen=True)
class Lane:
    """Place one row of the block along an axis: `offset` from its start, and the run that it belongs to."""

    row: int
    offset: float
    run: Run
    head: bool


def svg(table: Table) -> str:
    """Draw the block mask of every forward that has rows."""
    parts: list[str] = []
    top = MARGIN + 44.0
    legend, width = _legend(MARGIN + 30, [each for plan in table.forwards.values() for each in plan.segments])
    for plan in table.forwards.values():
        if plan.rows:
            drawn, right, top = _panel(table, plan, top)
            parts += drawn
            width = max(width, right + MARGIN)
    return "\n".join([*svg_head(table, "Block masks", ADAPTER, width, top), *legend, *parts, "</svg>"]) + "\n"


def _legend(y: float, segments: Sequence[SegmentPlan]) -> tuple[list[str], float]:
    """Say what the colours of these segments mean; gives its parts and its right edge."""
    x, parts = float(MARGIN), []
    fates = {segment.kv for segment in segments}
    adapter = [("url(#fsm-adapter)", "adapter")] if any(segment.adapter for segment in segments) else []
    for fill, words in (
        *((FATES[fate], text) for fate, text in MEANING.items() if fate in fates),
        *adapter,
        (CACHE, "committed KV"),
    ):
        parts.append(_box(x, y - 9, 10, 10, fill))
        parts.append(_text(x + 15, y, words, f'font-size="11" fill="{FAINT}"'))
        x += 15 + 6.1 * len(words) + 16
    return parts, x


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def _text(x: float, y: float, words: str, attributes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(words)}</text>'


def _panel(table: Table, plan: ForwardPlan, top: float) -> tuple[list[str], float, float]:
    """Draw one forward below `top`; gives its parts, its right edge, and where the next one begins."""
    shown = picture(table, plan, MOST_NODES)
    lanes = _lanes(shown)
    labels = _labels(shown, lanes)
    side = max(len(label) for _, label in labels) * CODE + 8
    left, up = MARGIN + side + 10 + CACHE_WIDTH + 6, top + 34 + side + 10
    extent = lanes[-1].offset + CELL
    rows = counted(plan.rows, "row")
    note = ", an example tree" if shown.parents else ""
    if shown.parents and len(shown.parents) < plan.rows:
        note = f", the first {len(shown.parents)} nodes of an example tree"
    heading = f'<tspan font-weight="600">{escape(plan.name)}</tspan>'
    heading += f'<tspan dx="8" fill="{FAINT}" font-size="12">{plan.attention}, {rows}{note}</tspan>'
    parts = [f'<text x="{MARGIN}" y="{top + 14:g}" font-size="14" fill="{INK}">{heading}</text>']
    parts += [_box(left - CACHE_WIDTH - 6, up, CACHE_WIDTH, extent, CACHE)]
    parts += _axes(lanes, left, up)
    parts += _cells(shown, lanes, left, up)
    for offset, label in labels:
        ink = f'class="code" fill="{INK}"'
        parts.append(
            _text(left - CACHE_WIDTH - 18, up + offset + CELL - 3, label, f'text-anchor="end" {ink}')
        )
        parts.append(_upright(left + offset + CELL / 2, up - 14, label))
    right = left + extent
    if shown.parents:
        drawn, right, low = _tree(shown.parents, right + 40, up)
        return [*parts, *drawn], right, max(up + extent, low) + 24
    return parts, right, up + extent + 24


def _upright(x: float, y: float, words: str) -> str:
    turned = f'transform="rotate(-90 {x + 4:g} {y:g})"'
    return _text(x + 4, y, words, f'class="code" fill="{INK}" {turned}')


def _lanes(shown: Picture) -> list[Lane]:
    """Place the rows that are drawn along an axis, with gaps where rows or groups are left out."""
    lanes: list[Lane] = []
    offset, after = 0.0, -1
    for run in (run for group in repeated(by_group(shown.runs), MOST_GROUPS) for run in group):
        kept = list(range(run.count))
        if run.count > MOST_RUN and not shown.parents:
            kept = [*kept[: MOST_RUN - 2], kept[-1]]
        for index in kept:
            row = run.first + index
            if row != after + 1:
                offset += 2 * GAP if index == 0 else GAP
            elif index == 0 and lanes:
                offset += 3 if run.group != lanes[-1].run.group else 1
            lanes.append(Lane(row, offset, run, index == 0))
            offset, after = offset + CELL, row
    return lanes


def _labels(shown: Picture, lanes: Sequence[Lane]) -> list[tuple[float, str]]:
    """Name each run at its first row, rows behind a gap, and each node of a tree by its number and its parent's."""
    if not shown.parents:
        jumps = {lane.row for before, lane in pairwise(lanes) if lane.row != before.row + 1}
        heads = [lane for lane in lanes if lane.head or lane.row in jumps]
        return [(lane.offset, lane.run.name if lane.head else f"row {lane.row}") for lane in heads]
    names = ["0 root", *(f"{node} below {parent}" for node, parent in enumerate(shown.parents) if node)]
    return [(lane.offset, names[lane.row]) for lane in lanes]


def _axes(lanes: Sequence[Lane], left: float, up: float) -> Iterator[str]:
    """Mark rows and columns by their own fate, and hatch those of the adapter."""
    for lane in lanes:
        for x, y, width, height in (
            (left - CACHE_WIDTH - 14, up + lane.offset, 6, CELL - 1),
            (left + lane.offset, up - 10, CELL - 1, 6),
        ):
            yield _box(x, y, width, height, FATES[lane.run.kv])
            if lane.run.adapter:
                yield _box(x, y, width, height, "url(#fsm-adapter)")


def _cells(shown: Picture, lanes: Sequence[Lane], left: float, up: float) -> Iterator[str]:
    for row in lanes:
        for column in lanes:
            seen = shown.mask[row.row, column.row]
            x, y = left + column.offset, up + row.offset
            yield _box(x, y, CELL - 1, CELL - 1, FATES[column.run.kv] if seen else UNSEEN)
            if seen and column.run.adapter:
                yield _box(x, y, CELL - 1, CELL - 1, "url(#fsm-adapter)")


# The tree beside its mask -------------------------------------------------------------------------------------

_ACROSS, _DOWN = 26, 44


def _tree(parents: Sequence[int], left: float, up: float) -> tuple[list[str], float, float]:
    """Draw a tree from its root down; gives its parts, its right edge and its lower edge."""
    depths = [0] * len(parents)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if parent >= 0:
            depths[node] = depths[parent] + 1
            children.setdefault(parent, []).append(node)
    across: dict[int, float] = {}
    _spread(0, children, across, 0)
    at = [
        (left + 12 + across[node] * _ACROSS, up + 12 + depths[node] * _DOWN) for node in range(len(parents))
    ]
    parts = [
        f'<path d="M{at[parent][0]:g} {at[parent][1]:g}L{at[node][0]:g} {at[node][1]:g}" stroke="{FAINT}"/>'
        for node, parent in enumerate(parents)
        if parent >= 0
    ]
    for node, (x, y) in enumerate(at):
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="#dcf5e3" stroke="{FATES["provisional"]}"/>')
        parts.append(_text(x, y + 4, str(node), f'class="code" text-anchor="middle" fill="{INK}"'))
    return parts, max(x for x, _ in at) + 12, max(y for _, y in at) + 12


def _spread(node: int, children: dict[int, list[int]], across: dict[int, float], free: int) -> int:
    """Give each node a place across: leaves side by side from `free` on, the others above their children."""
    below = children.get(node, [])
    for child in below:
        free = _spread(child, children, across, free)
    across[node] = (across[below[0]] + across[below[-1]]) / 2 if below else free
    return free if below else free + 1
