"""Charts as inline SVG: no script, no network; colours come from the style sheet of the page (`style.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 16, 32
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


@dataclass(frozen=True)
class Layer:
    """One series: its name, its style class and one value a bucket."""

    name: str
    style: str
    values: Sequence[float]


def ticks(high: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `high`, about `count` of them."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Write a number with at most three digits and a suffix: 12.5k, 3.2M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if suffix == "k" else size)
            return f"{scaled:.3g}{suffix}" if scaled < 999.5 else f"{scaled:.0f}{suffix}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def time_chart(
    edges_s: Sequence[float],
    layers: Sequence[Layer],
    unit: str,
    *,
    stacked: bool = False,
    ceiling: tuple[str, float] | None = None,
) -> str:
    """Return a chart over time; `edges_s` are the ends of the buckets in seconds, layers hold one value a bucket.

    Stacked layers are areas on top of each other, others are steps over a faint area. The ceiling is drawn
    where it lies near the values, else it is left to the text.
    """
    if not edges_s:
        return '<p class="note">Nothing happened.</p>'
    totals = [sum(column) for column in zip(*(layer.values for layer in layers), strict=True)]
    high = max(totals) if stacked else max(max(layer.values) for layer in layers)
    marks = ticks(max(high, ceiling[1]) if ceiling and ceiling[1] <= 2.5 * high else high)
    scale = _Scale(edges_s[-1], marks[-1])
    base = [0.0] * len(edges_s)
    body = []
    for layer in layers:
        top = [low + value for low, value in zip(base, layer.values, strict=True)]
        body.append(f'<path class="area {layer.style}" d="{scale.area(edges_s, base, top)}"/>')
        if not stacked:  # a line on top of an empty layer would look like that layer
            body.append(f'<path class="line {layer.style}" d="{scale.steps(edges_s, top)}"/>')
        base = top if stacked else base
    if ceiling and ceiling[1] <= marks[-1]:
        y = scale.y(ceiling[1])
        body.append(f'<line class="ceiling" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="tick" x="{LEFT + 6}" y="{y - 5:.1f}">{escape(ceiling[0])}</text>')
    legend = "".join(_key(layer) for layer in reversed(layers)) if len(layers) > 1 else ""
    axes = _axes(scale, marks, unit)
    return (
        f'<div class="legend">{legend}</div>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{axes}{"".join(body)}'
        f"{_hover(scale, edges_s, layers, unit)}</svg>"
    )


@dataclass(frozen=True)
class _Scale:
    """Map seconds and values to the plot."""

    seconds: float
    high: float

    def x(self, second: float) -> float:
        """Return the column of a time."""
        return LEFT + PLOT_WIDTH * second / self.seconds

    def y(self, value: float) -> float:
        """Return the row of a value."""
        return TOP + PLOT_HEIGHT * (1 - value / self.high)

    def steps(self, edges_s: Sequence[float], values: Sequence[float]) -> str:
        """Return a path that holds each value over its bucket."""
        points = [f"M{LEFT},{self.y(values[0]):.1f}"]
        for i, edge in enumerate(edges_s):
            points.append(f"H{self.x(edge):.1f}")
            if i + 1 < len(values):
                points.append(f"V{self.y(values[i + 1]):.1f}")
        return "".join(points)

    def area(self, edges_s: Sequence[float], low: Sequence[float], top: Sequence[float]) -> str:
        """Return the area between two step lines."""
        back = []
        starts = [0.0, *edges_s[:-1]]
        for start, value in zip(reversed(starts), reversed(low), strict=True):
            back.append(f"V{self.y(value):.1f}H{self.x(start):.1f}")
        return f"{self.steps(edges_s, top)}{''.join(back)}Z"


def _axes(scale: _Scale, marks: Sequence[float], unit: str) -> str:
    """Return grid, tick labels and unit."""
    parts = []
    for mark in marks:
        y = scale.y(mark)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{short(mark)}</text>'
        )
    for second in ticks(scale.seconds, 6):
        if second <= scale.seconds:
            x = scale.x(second)
            parts.append(
                f'<text class="tick" text-anchor="middle" x="{x:.1f}"'
                f' y="{HEIGHT - 14}">{short(second)} s</text>'
            )
    parts.append(
        f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{TOP - 3}">{escape(unit)}</text>'
    )
    return "".join(parts)


def _hover(scale: _Scale, edges_s: Sequence[float], layers: Sequence[Layer], unit: str) -> str:
    """Return invisible bars whose titles show the values of a bucket."""
    bars = []
    for i, (start, end) in enumerate(zip([0.0, *edges_s[:-1]], edges_s, strict=True)):
        values = "\n".join(f"{layer.name}: {short(layer.values[i])} {unit}" for layer in layers)
        x = scale.x(start)
        bars.append(
            f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{scale.x(end) - x:.2f}"'
            f' height="{PLOT_HEIGHT}">'
            f"<title>{short(start)} to {short(end)} s\n{escape(values)}</title></rect>"
        )
    return "".join(bars)


def _key(layer: Layer) -> str:
    """Return the legend entry of a layer."""
    return f'<span><i class="swatch {layer.style}"></i>{escape(layer.name)}</span>'


def range_chart(rows: Sequence[tuple[str, dict[str, float]]], unit: str, width: int = WIDTH) -> str:
    """Return one line a row from the smallest to the largest of its named values, a mark for each.

    `width` is about what the chart is shown with, so that its letters keep their size; long labels widen it.
    """
    # At most 9 units a letter of the style sheet's label size, capitals and digits among them.
    label_width, row_height = max(112, 12 + 9 * max((len(label) for label, _ in rows), default=0)), 32
    width = max(width, label_width + 30 + 180)
    span = width - label_width - 30
    marks = ticks(max((max(values.values()) for _, values in rows), default=0.0), max(2, span // 72))
    height = row_height * len(rows) + 40

    def x(value: float) -> float:
        return label_width + span * value / marks[-1]

    parts = []
    for mark in marks:
        parts.append(f'<line class="grid" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="8" y2="{height - 26}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x(mark):.1f}" y="{height - 10}">'
            f"{short(mark)} {escape(unit)}</text>"
        )
    for i, (label, values) in enumerate(rows):
        y = 8 + row_height * (i + 0.5)
        low, top = min(values.values()), max(values.values())
        parts.append(
            f'<text class="label" text-anchor="end" x="{label_width - 12}" y="{y + 4}">{escape(label)}</text>'
        )
        parts.append(f'<line class="range" x1="{x(low):.1f}" x2="{x(top):.1f}" y1="{y}" y2="{y}"/>')
        # The first mark is drawn last and smallest: equal ones are seen as rings around it.
        for order, (name, value) in reversed(list(enumerate(values.items()))):
            parts.append(
                f'<circle class="mark m{order}" cx="{x(value):.1f}" cy="{y}" r="{4 + order}">'
                f"<title>{escape(label)}, {escape(name)}: {value:.4g} {escape(unit)}</title></circle>"
            )
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class Line:
    """One series of a chart over numbers: its name, its style class, and its points in order."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


def load_chart(lines: Sequence[Line], unit_x: str, unit_y: str, *, mark: float | None = None) -> str:
    """Return a chart of lines over a logarithmic axis of loads; `mark` draws a level across it."""
    places = sorted({x for line in lines for x, _ in line.points})
    values = [y for line in lines for _, y in line.points]
    if not places:
        return '<p class="note">Nothing happened.</p>'
    marks = ticks(max(*values, mark or 0.0))
    low, high = math.log(places[0]), math.log(places[-1])
    span = (high - low) or 1.0

    def x(place: float) -> float:
        return LEFT + 8 + (PLOT_WIDTH - 16) * (math.log(place) - low) / span

    def y(value: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - value / marks[-1])

    parts = []
    for value in marks:
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{y(value) + 4:.1f}">{short(value)}</text>'
        )
    parts.extend(
        f'<text class="tick" text-anchor="middle" x="{x(place):.1f}" y="{HEIGHT - 14}">{short(place)}</text>'
        for place in places
    )
    parts.append(
        f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{TOP - 3}">{escape(unit_y)}</text>'
    )
    parts.append(
        f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}">{escape(unit_x)}</text>'
    )
    if mark is not None:
        parts.append(
            f'<line class="ceiling" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        )
    for line in lines:
        path = "L".join(f"{x(place):.1f},{y(value):.1f}" for place, value in line.points)
        parts.append(f'<path class="line {line.style}" d="M{path}"/>')
        for place, value in line.points:
            title = f"{line.name}, {short(place)} {unit_x}: {value:.4g} {unit_y}"
            parts.append(
                f'<circle class="dot {line.style}" cx="{x(place):.1f}" cy="{y(value):.1f}" r="3.5">'
                f"<title>{escape(title)}</title></circle>"
            )
    legend = "".join(f'<span><i class="swatch {line.style}"></i>{escape(line.name)}</span>' for line in lines)
    return (
        f'<div class="legend">{legend}</div><svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"{''.join(parts)}</svg>"
    )


def share_bar(shares: Sequence[tuple[str, str, float]]) -> str:
    """Return one bar cut into shares of 1, each (name, style, share), with a legend that says them in percent."""
    left, cuts = 0.0, []
    for name, style, share in shares:
        cuts.append(
            f'<rect class="cut {style}" x="{left * WIDTH:.1f}" y="0" width="{max(0.0, share) * WIDTH:.1f}" height="22">'
            f"<title>{escape(name)}: {100 * share:.1f} %</title></rect>"
        )
        left += share
    keys = "".join(
        f'<span><i class="swatch {style}"></i>{escape(name)} {100 * share:.0f} %</span>'
        for name, style, share in shares
        if share >= 0.005
    )
    bar = f'<svg class="chart" viewBox="0 0 {WIDTH} 22" role="img">{"".join(cuts)}</svg>'
    return f'{bar}<div class="legend">{keys}</div>'
