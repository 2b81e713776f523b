"""State diagrams of a table as text for other programs: Mermaid and Graphviz DOT, and the words on their arrows.

The SVG that needs no other program is in `drawing/state_drawing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsm_spec.language.expression import Const, to_text
from fsm_spec.language.linear import difference
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from fsm_spec.language.expression import Expr
    from fsm_spec.language.piece import Piece
    from fsm_spec.table import Row, StatePlan, Table

# Fill and border by phase, readable on white and in print: light fill, dark border.
COLOURS: Final = {
    "draft": ("#fff3d6", "#b7791f"),
    "verify": ("#dcf5e3", "#2f855a"),
    "commit": ("#dbeafe", "#2b6cb0"),
    "refresh": ("#f3e1fb", "#8e44ad"),
}
BUILT_IN_COLOURS: Final = ("#f7f8fa", "#a0aec0")


@dataclass(frozen=True)
class Edge:
    """Join two states; `lines` are the words on the arrow, `built_in` marks the life cycle."""

    source: str
    target: str
    lines: tuple[str, ...]
    built_in: bool = False


def guard_text(row: Row, table: Table) -> str:
    """Print the guard; nothing where it always holds. What parameters alone decide stands as the spec writes it."""
    guard = row.guard
    if isinstance(guard, Const) and not row.built_in:
        guard = table.cached("written guards", lambda: _written_guards(table)).get(row.index, guard)
    return "" if guard == Const(1, boolean=True) else expression_text(guard, table)


def _written_guards(table: Table) -> dict[int, Expr]:
    """Give by row the guard of the transition that it came from: one row for each of its sources, in order."""
    written = [
        transition.when
        for transition in table.spec.transitions
        for _ in ([transition.from_] if isinstance(transition.from_, str) else transition.from_)
    ]
    own = [row.index for row in table.rows if not row.built_in]
    return dict(zip(own, written, strict=False))


def effect(row: Row, table: Table) -> list[str]:
    """Print what a row does to KV, text, columns and carries, one part each."""
    parts = []
    if row.draft_keep != Const(0):
        forward = table.state(row.sources[0]).forward
        model = table.forwards[forward].model if forward is not None else None
        parts.append(f"keep {expression_text(row.draft_keep, table)} in {model}")
    if row.keep != Const(0):
        parts.append(f"keep {expression_text(row.keep, table)}{_which_rows(row)}")
    if row.emit:
        parts.append(f"emit {pieces_text(row.emit, table)}")
    sets = [f"{name} = {expression_text(value, table)}" for name, value in row.sets]
    sets += [f"{name} = {pieces_text(pieces, table)}" for name, pieces in row.carries]
    if sets:
        parts.append("set " + ", ".join(sets))
    return parts


def _which_rows(row: Row) -> str:
    """Say which rows are kept where these are not the first."""
    if row.keep_rows is not None:
        return f" along {row.keep_rows}"
    return "" if row.keep_stride is None else f", every {row.keep_stride}th row"


def expression_text(expr: Expr, table: Table) -> str:
    """Print an expression with the number of slots that prefill must reach under its name, `fill`."""
    text = to_text(expr)
    return text.replace(to_text(table.fill), "fill") if table.fill is not None else text


def pieces_text(pieces: Iterable[Piece], table: Table) -> str:
    """Print compiled pieces as a person would: `drafts[0:a]` is `drafts[:a]`, a slice of the whole is the name."""
    return ", ".join(_piece_text(piece, table) for piece in pieces)


def _piece_text(piece: Piece, table: Table) -> str:
    if piece.start is None or piece.stop is None:
        return str(piece)
    whole = table.cached("piece lengths", lambda: _lengths(table)).get(piece.name, 1)
    if piece.start == Const(0):
        return (
            piece.name
            if piece.stop == Const(whole)
            else f"{piece.name}[:{expression_text(piece.stop, table)}]"
        )
    if difference(piece.stop, piece.start) == Const(1):
        return f"{piece.name}[{expression_text(piece.start, table)}]"
    stop = "" if piece.stop == Const(whole) else expression_text(piece.stop, table)
    return f"{piece.name}[{expression_text(piece.start, table)}:{stop}]"


def _lengths(table: Table) -> dict[str, int | None]:
    """Give the length of every carry and operator result that has one."""
    lengths = {carry.name: carry.shape[0] for carry in table.carry}
    for plan in table.forwards.values():
        for output in (output for operator in plan.operators for output in operator.outputs):
            if output.kind != "count":
                lengths[output.name] = output.most.value if isinstance(output.most, Const) else None
    return lengths


def label(row: Row, table: Table) -> str:
    """Print the event of a row with its arguments: `chunk(n)`."""
    args = ", ".join(arg.name for arg in table.events[row.event].args)
    return f"{row.event}({args})" if args else row.event


def edges(table: Table) -> list[Edge]:
    """List the arrows of the diagram: the spec's rows each, the life cycle's rows joined by source and target."""
    found = []
    for row in table.rows:
        if not row.built_in:
            guard = guard_text(row, table)
            for source in row.sources:
                event = () if row.event == source else (label(row, table),)
                keep = tuple(part for part in effect(row, table) if not part.startswith("set "))
                found.append(Edge(source, row.target, (*event, *((f"[{guard}]",) if guard else ()), *keep)))
    return found + _life_cycle(table)


def _life_cycle(table: Table) -> list[Edge]:
    """Draw the way in, the way out and preemption; abort and halt lead from many states to `end` and stay words."""
    if not table.contract:
        return []
    drawn = {
        (source, row.target, row.event): Edge(source, row.target, (row.event,), built_in=True)
        for row in table.rows
        if row.built_in and row.target != END
        for source in row.sources
    }
    enders = [state.name for state in table.states if _emits(table, state)]
    return [*drawn.values(), *(Edge(name, END, ("stop or limit",), built_in=True) for name in enders)]


def _emits(table: Table, state: StatePlan) -> bool:
    return any(not row.built_in and state.name in row.sources and row.emit for row in table.rows)


def mermaid(table: Table) -> str:
    """Give a Mermaid `stateDiagram-v2`."""
    lines = ["stateDiagram-v2", f"  [*] --> {_entry(table)}"]
    for edge in edges(table):
        words = "<br/>".join(_escaped(line) for line in edge.lines)
        lines.append(f"  {_node(edge.source)} --> {_node(edge.target)}{': ' + words if words else ''}")
    if table.contract:
        lines += [f"  {_node(END)}: {END}", f"  {_node(END)} --> [*]"]
    lines += [
        f"  classDef {phase} fill:{fill},stroke:{border},color:#1a202c"
        for phase, (fill, border) in {**COLOURS, "life": BUILT_IN_COLOURS}.items()
    ]
    for state in table.states:
        lines.append(f"  class {_node(state.name)} {'life' if state.built_in else state.phase}")
    return "\n".join(lines) + "\n"


def _node(name: str) -> str:
    """Mermaid reads a bare `end` as a keyword."""
    return f"{name}_" if name == END else name


def _entry(table: Table) -> str:
    return WAIT if table.contract else table.start.name


def _escaped(text: str) -> str:
    """Mermaid ends a label at `;` and reads `#` as an entity; colons start one."""
    return (
        text.replace("#", "#35;")
        .replace(";", "#59;")
        .replace(":", "#58;")
        .replace("<", "#lt;")
        .replace(">", "#gt;")
    )


def dot(table: Table) -> str:
    """Give a Graphviz digraph."""
    lines = [
        f"digraph {table.name} {{",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=12];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    for state in table.states:
        fill, border = BUILT_IN_COLOURS if state.built_in else COLOURS[state.phase]
        bold = ", penwidth=2" if state.round else ""
        words = state.name if state.built_in else f"{state.name}\\n{state.phase}"
        lines.append(f'  "{state.name}" [label="{words}", fillcolor="{fill}", color="{border}"{bold}];')
    for edge in edges(table):
        grey = ', color="#a0aec0", fontcolor="#718096"' if edge.built_in else ""
        words = "\\n".join(edge.lines)
        lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{words}"{grey}];')
    return "\n".join([*lines, "}"]) + "\n"
