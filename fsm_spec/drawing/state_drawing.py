"""A state diagram as SVG that stands alone: no program, font file or script is needed to show it.

Where everything stands is decided in `layout.py`. Text is real text, so that it can be searched, copied and read aloud.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from fsm_spec.drawing.diagram import BUILT_IN_COLOURS, COLOURS
from fsm_spec.drawing.layout import (
    LINE,
    LOOP_REACH,
    MARGIN,
    NODE_HEIGHT,
    NODE_WIDTH,
    Arrow,
    Layout,
    Node,
    layout,
)

if TYPE_CHECKING:
    from fsm_spec.table import Table

INK: Final = "#1a202c"
FAINT: Final = "#718096"
# Colours of arrows: the spec's own, and the built-in life cycle's.
LINES: Final = {"own": "#4a5568", "life": "#a0aec0"}
RADIUS: Final = 12
# What stands in place of the light colours where a dark scheme is preferred; programs that know none ignore it.
DARK: Final = {
    "#ffffff": "#1c222a",
    INK: "#e6eaf0",
    FAINT: "#97a3b2",
    LINES["own"]: "#b7c2d0",
    LINES["life"]: "#66727f",
    "#fff3d6": "#453716",
    "#dcf5e3": "#1d4029",
    "#dbeafe": "#1e3a5c",
    "#f3e1fb": "#46275a",
    "#f7f8fa": "#262e38",
    "#b7791f": "#e0a94f",
    "#2f855a": "#63c08c",
    "#2b6cb0": "#6fa8e6",
    "#8e44ad": "#c38fdd",
    "#edf2f7": "#2a323c",
}
STYLE: Final = (
    ".fsm text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
    ".fsm .code{font-family:ui-monospace,'SF Mono','DejaVu Sans Mono',monospace;font-size:11px}"
    "@media(prefers-color-scheme:dark){"
    + "".join(
        f'.fsm [fill="{light}"]{{fill:{dark}}}.fsm [stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in DARK.items()
    )
    + "}"
)


def svg(table: Table) -> str:
    """Draw the state diagram of a table: states coloured by phase, the built-in life cycle lighter."""
    placed = layout(table)
    height = round(placed.height)
    defs = "<defs>" + "".join(_arrowhead(name) for name in LINES) + "</defs>"
    parts = svg_head(table, "State diagram", defs, placed.width, height)
    parts += [_line(arrow) for arrow in sorted(placed.arrows, key=lambda arrow: not arrow.edge.built_in)]
    parts += [_words(arrow) for arrow in placed.arrows]
    parts += [_node(node) for node in placed.nodes]
    parts.append(_entry(placed))
    if table.contract:
        note = f'<text x="{MARGIN}" y="{height - 14}" font-size="11" fill="{FAINT}">'
        parts.append(f"{note}abort ends a request that waits, prefills or is between rounds</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def svg_head(table: Table, what: str, defs: str, width: float, height: float) -> list[str]:
    """Begin a drawing of a table: its size and label, its colours, and the title, which is never cut off."""
    params = ", ".join(f"{name} = {value}" for name, value in table.params.items())
    title_width = 2 * MARGIN + 9.5 * len(table.name) + 7 * len(params) + 14
    wide, high = round(max(width, title_width)), round(height)
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    title = f'<text x="{MARGIN}" y="{MARGIN + 8}" font-size="16" font-weight="700" fill="{INK}">'
    small = f'<tspan dx="10" font-size="12" font-weight="400" fill="{FAINT}">{escape(params)}</tspan>'
    label = f'role="img" aria-label="{what} of {escape(table.name)}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fsm" {size} {label}>',
        f"<style>{STYLE}</style>",
        defs,
        f'<rect width="{wide}" height="{high}" rx="8" fill="#ffffff"/>',
        f"{title}{escape(table.name)}{small}</text>",
    ]


def _arrowhead(name: str) -> str:
    return (
        f'<marker id="fsm-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 1L9 5L0 9z" fill="{LINES[name]}"/></marker>'
    )


def _stroke(arrow: Arrow) -> str:
    name, width = ("life", 1.2) if arrow.edge.built_in else ("own", 1.6)
    return f'fill="none" stroke="{LINES[name]}" stroke-width="{width}" marker-end="url(#fsm-{name})"'


def _line(arrow: Arrow) -> str:
    path = {"straight": _straight, "loop": _loop}.get(arrow.kind, _beside)(arrow)
    return f'<path d="{path}" {_stroke(arrow)}/>'


def _straight(arrow: Arrow) -> str:
    top, bottom = arrow.source.y + NODE_HEIGHT / 2, arrow.target.y - NODE_HEIGHT / 2
    return f"M{arrow.source.x:g} {top:g}V{bottom - 1:g}"


def _loop(arrow: Arrow) -> str:
    """Leave at the right side, and come back to the bottom edge."""
    node = arrow.source
    right, bottom = node.x + NODE_WIDTH / 2, node.y + NODE_HEIGHT / 2
    below = arrow.label_y + arrow.label_height / 2 + 6
    out = right + LOOP_REACH
    return (
        f"M{right:g} {bottom - 13:g}C{out:g} {bottom - 13:g} {out:g} {below:g} {right - 12:g} {below:g}"
        f"Q{right - 26:g} {below:g} {right - 26:g} {bottom + 1:g}"
    )


def _beside(arrow: Arrow) -> str:
    """Run out to the lane, along it, and back in, with round corners."""
    sign = 1 if arrow.kind == "right" else -1
    start, end = arrow.source.x + sign * NODE_WIDTH / 2, arrow.target.x + sign * (NODE_WIDTH / 2 + 1)
    down = 1 if arrow.target_y > arrow.source_y else -1
    x, r = arrow.lane_x, RADIUS
    return (
        f"M{start:g} {arrow.source_y:g}H{x - sign * r:g}Q{x:g} {arrow.source_y:g} {x:g} {arrow.source_y + down * r:g}"
        f"V{arrow.target_y - down * r:g}Q{x:g} {arrow.target_y:g} {x - sign * r:g} {arrow.target_y:g}H{end:g}"
    )


def _words(arrow: Arrow) -> str:
    anchor = "end" if arrow.kind == "left" else "start"
    x = {
        "straight": arrow.source.x + 10,
        "loop": arrow.source.x + NODE_WIDTH / 2 + LOOP_REACH,
        "left": arrow.lane_x - 8,
        "right": arrow.lane_x + 8,
    }[arrow.kind]
    colour = FAINT if arrow.edge.built_in else INK
    return "".join(
        f'<text class="code" x="{x:g}" y="{arrow.label_y + LINE * (index + 0.8):g}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(line)}</text>'
        for index, line in enumerate(arrow.edge.lines)
    )


def _node(node: Node) -> str:
    state = node.state
    fill, border = BUILT_IN_COLOURS if state.built_in else COLOURS[state.phase]
    left, top = node.x - NODE_WIDTH / 2, node.y - NODE_HEIGHT / 2
    weight = 2.2 if state.round else 1.3
    small = (
        ""
        if state.built_in
        else state.phase + (", start" if state.start else ", round" if state.round else "")
    )
    ink, bold = (FAINT, 400) if state.built_in else (INK, 600)
    words = [(state.name, node.y - 2 if small else node.y + 5, ink, f'font-size="14" font-weight="{bold}"')]
    words += [(small, node.y + 14, border, 'font-size="11"')] if small else []
    name = "".join(
        f'<text x="{node.x:g}" y="{y:g}" text-anchor="middle" fill="{colour}" {font}>{escape(text)}</text>'
        for text, y, colour, font in words
    )
    box = f'<rect x="{left:g}" y="{top:g}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="12" '
    return f'{box}fill="{fill}" stroke="{border}" stroke-width="{weight}"/>{name}'


def _entry(placed: Layout) -> str:
    first = placed.nodes[0]
    top = first.y - NODE_HEIGHT / 2
    return (
        f'<circle cx="{first.x:g}" cy="{top - 18:g}" r="4" fill="{LINES["own"]}"/>'
        f'<path d="M{first.x:g} {top - 14:g}V{top - 1:g}" fill="none" stroke="{LINES["own"]}" stroke-width="1.4" '
        'marker-end="url(#fsm-own)"/>'
    )
