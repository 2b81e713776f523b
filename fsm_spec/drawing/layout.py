"""Places for a state diagram: one state a row, neighbours joined straight, all other arrows on lanes beside them.

Words on arrows stand only between rows, and horizontal lines run only at rows, so that nothing can overlap whatever
the spec. All lengths are pixels. What is drawn at these places is in `drawing/state_drawing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from fsm_spec.drawing.diagram import edges
from fsm_spec.table import END

if TYPE_CHECKING:
    from fsm_spec.drawing.diagram import Edge
    from fsm_spec.table import StatePlan, Table

NODE_WIDTH: Final = 148
NODE_HEIGHT: Final = 46
# Width of a character of the labels (11 px monospace) and their line height.
CHARACTER: Final = 6.7
LINE: Final = 15
GAP: Final = 46
LANE_PAD: Final = 22
LOOP_REACH: Final = 24
MARGIN: Final = 24
TITLE: Final = 40

Kind = Literal["straight", "loop", "left", "right"]


@dataclass
class Node:
    """Place a state: its centre."""

    state: StatePlan
    row: int
    x: float = 0.0
    y: float = 0.0


@dataclass
class Arrow:
    """Place an arrow; lanes count outwards from 0, ports are heights on the side of source and target."""

    edge: Edge
    kind: Kind
    source: Node
    target: Node
    lane: int = 0
    lane_x: float = 0.0
    label_y: float = 0.0
    source_y: float = 0.0
    target_y: float = 0.0

    @property
    def label_width(self) -> float:
        """Give the width of the words."""
        return max((len(line) for line in self.edge.lines), default=0) * CHARACTER

    @property
    def label_height(self) -> float:
        """Give the height of the words."""
        return len(self.edge.lines) * LINE

    @property
    def rows(self) -> tuple[int, int]:
        """Give the rows the arrow spans, upper first."""
        first, last = sorted((self.source.row, self.target.row))
        return first, last


@dataclass
class Layout:
    """Hold all places and the size of the whole."""

    nodes: list[Node]
    arrows: list[Arrow]
    width: float = 0.0
    height: float = 0.0
    # Top and height of the space below each row.
    gaps: list[tuple[float, float]] = field(default_factory=list)


def layout(table: Table) -> Layout:
    """Place the states and arrows of a table."""
    nodes = {name: Node(table.state(name), row) for row, name in enumerate(_order(table))}
    arrows: list[Arrow] = []
    joined: set[int] = set()
    for edge in edges(table):
        source, target = nodes[edge.source], nodes[edge.target]
        if source is target:
            kind: Kind = "loop"
        elif target.row == source.row + 1 and source.row not in joined:
            kind = "straight"
            joined.add(source.row)
        else:
            kind = "left" if edge.built_in else "right"
        arrows.append(Arrow(edge, kind, source, target))
    placed = Layout(list(nodes.values()), arrows)
    _place_rows(placed)
    _place_columns(placed)
    _place_ports(placed)
    return placed


def _order(table: Table) -> list[str]:
    """Order the states as a request meets them: life cycle first, `end` last."""
    order = [state.name for state in table.states if state.built_in and state.name != END]
    reached = [table.start.name]
    for name in reached:
        for row in table.rows:
            if not row.built_in and name in row.sources and row.target not in (*reached, *order, END):
                reached.append(row.target)
    order += reached
    order += [state.name for state in table.states if state.name not in (*order, END)]
    return order + [state.name for state in table.states if state.name == END]


def _loops(placed: Layout, row: int) -> list[Arrow]:
    return [arrow for arrow in placed.arrows if arrow.kind == "loop" and arrow.source.row == row]


def _place_rows(placed: Layout) -> None:
    """Make the space below each row as high as the words that stand in it."""
    y = float(MARGIN + TITLE)
    for node in placed.nodes:
        node.y = y + NODE_HEIGHT / 2
        y += NODE_HEIGHT
        loops = _loops(placed, node.row)
        loop_height = sum(arrow.label_height + 8 for arrow in loops)
        label_y = y + 4
        for arrow in loops:
            arrow.label_y = label_y
            label_y += arrow.label_height + 8
        straight = [a for a in placed.arrows if a.kind == "straight" and a.source is node]
        words = straight[0].label_height if straight else 0
        beside = max((a.label_height for a in placed.arrows if _label_row(a) == node.row), default=0)
        gap = max(GAP, loop_height + words + 26, beside + 16)
        if node is placed.nodes[-1]:
            gap = max(loop_height, beside + 16 if beside else 0)
        for arrow in straight:
            arrow.label_y = y + loop_height + (gap - loop_height - words) / 2 - 3
        placed.gaps.append((y, gap))
        y += gap
    for arrow in placed.arrows:
        if arrow.kind in ("left", "right"):
            top, height = placed.gaps[_label_row(arrow)]
            arrow.label_y = top + (height - arrow.label_height) / 2
    # Room for a note below where there is a life cycle to speak of.
    placed.height = y + MARGIN + (LINE if any(node.state.built_in for node in placed.nodes) else 0)


def _label_row(arrow: Arrow) -> int:
    """Give the row below which the words of a lane stand; -1 for arrows without a lane."""
    if arrow.kind not in ("left", "right"):
        return -1
    first, last = arrow.rows
    return (first + last - 1) // 2


def _place_columns(placed: Layout) -> None:
    """Give lanes to the arrows beside the states: short ones inside, none on a lane that is taken."""
    extent = {"left": NODE_WIDTH / 2, "right": max(_reach(placed, node.row) for node in placed.nodes)}
    for side in ("left", "right"):
        offset = NODE_WIDTH / 2 + LANE_PAD
        for lane in _lanes([arrow for arrow in placed.arrows if arrow.kind == side]):
            if side == "right":
                spanned = {row for arrow in lane for row in range(*arrow.rows)}
                offset = max([offset, *(_reach(placed, row) + LANE_PAD for row in spanned)])
            for arrow in lane:
                arrow.lane_x = offset
            offset += max(arrow.label_width for arrow in lane) + 8 + LANE_PAD
            extent[side] = max(extent[side], offset - LANE_PAD)
    centre = MARGIN + max(extent["left"], NODE_WIDTH / 2)
    for node in placed.nodes:
        node.x = centre
    for arrow in placed.arrows:
        if arrow.kind in ("left", "right"):
            arrow.lane_x = centre + (arrow.lane_x if arrow.kind == "right" else -arrow.lane_x)
    placed.width = centre + max(extent["right"], NODE_WIDTH / 2) + MARGIN


def _reach(placed: Layout, row: int) -> float:
    """Give how far right of the centre the words in the space below a row stand."""
    reach = NODE_WIDTH / 2
    for arrow in placed.arrows:
        if arrow.source.row == row and arrow.kind == "loop":
            reach = max(reach, NODE_WIDTH / 2 + LOOP_REACH + arrow.label_width)
        elif arrow.source.row == row and arrow.kind == "straight":
            reach = max(reach, 10 + arrow.label_width)
    return reach


def _lanes(arrows: Sequence[Arrow]) -> list[list[Arrow]]:
    lanes: list[list[Arrow]] = []
    for arrow in sorted(arrows, key=lambda a: a.rows[1] - a.rows[0]):
        # A lane may be shared by arrows whose rows lie apart.
        number = next(
            (n for n, lane in enumerate(lanes) if all(_apart(arrow, other) for other in lane)), len(lanes)
        )
        # Never inside an arrow that it encloses: its horizontal lines would cross that one's lane.
        inside = [other.lane for lane in lanes for other in lane if not _apart(arrow, other)]
        number = max([number, *(lane + 1 for lane in inside)])
        while len(lanes) <= number:
            lanes.append([])
        arrow.lane = number
        lanes[number].append(arrow)
    return lanes


def _apart(one: Arrow, other: Arrow) -> bool:
    return one.rows[1] < other.rows[0] or other.rows[1] < one.rows[0]


def _place_ports(placed: Layout) -> None:
    """Spread the ends of lanes over the sides of their states: upward ones above, outer ones nearer the middle."""
    for node in placed.nodes:
        for side in ("left", "right"):
            beside = [a for a in placed.arrows if a.kind == side and node in (a.source, a.target)]
            up = sorted((a for a in beside if _other(a, node).row < node.row), key=lambda a: a.lane)
            down = sorted((a for a in beside if _other(a, node).row > node.row), key=lambda a: -a.lane)
            ordered = [*up, *down]
            room = NODE_HEIGHT - 12
            for index, arrow in enumerate(ordered):
                y = node.y + ((index + 0.5) / len(ordered) - 0.5) * room
                if arrow.source is node:
                    arrow.source_y = y
                else:
                    arrow.target_y = y


def _other(arrow: Arrow, node: Node) -> Node:
    return arrow.target if arrow.source is node else arrow.source
