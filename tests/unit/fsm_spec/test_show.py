"""A table as text and as diagrams: what a reader must find, and that nothing in a drawing overlaps."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm_spec import command
from fsm_spec.cli import application
from fsm_spec.compile import compile_table
from fsm_spec.drawing import block_mask, diagram, layout, mask_drawing, show
from fsm_spec.drawing import state_drawing as drawing
from fsm_spec.errors import UserError
from fsm_spec.language.expression import Const, Name, parse
from fsm_spec.language.piece import Piece
from fsm_spec.load import load, loads, shipped
from fsm_spec.table import Table

SPECS = sorted(shipped())
# The phases of one request of the model all checkers agree on, without its pool; used by the tests of check too.
PHASES = """
spec: phases
about: The phases of one request of the common model, without the pool.
params:
  window: {range: [1, 4], default: 2, check: 2}
  total: {range: [1, 9], default: 4, check: 4, about: tokens to commit}
require: ["window <= total"]
columns:
  done: {init: 0, max: total, about: committed tokens}
  seen: {init: 0, max: window}
states:
  draft: {phase: draft, round: true, start: true, kv: {committed: done}, ignore: [judge, cut]}
  verify: {phase: verify, kv: {committed: done, provisional: window + 1}, ignore: [propose, cut]}
  trim: {phase: commit, kv: {committed: done, provisional: seen + 1}, ignore: [propose, judge]}
  finished: {phase: commit, kv: {}, ignore: [propose, judge, cut]}
events:
  propose: {}
  judge: {args: {a: {range: [0, window]}}}
  cut: {}
transitions:
  - {from: draft, on: propose, to: verify}
  - {from: verify, on: judge, to: trim, set: {seen: a}}
  - {from: trim, on: cut, when: done + seen + 1 < total, to: draft, set: {done: done + seen + 1, seen: 0}}
  - {from: trim, on: cut, when: done + seen + 1 >= total, to: finished, set: {done: total, seen: 0}}
check:
  always: {a running request has tokens to commit: done < total}
  sometimes: {a draft is accepted: done > 1}
  eventually: finished
"""


def compiled(name: str, **params: int) -> Table:
    """Compile a shipped spec, or the abstract one, with its lines."""
    loaded = loads(PHASES, "phases.yaml") if name == "phases" else load(name)
    return compile_table(loaded.spec, params, line_of=loaded.line_of)


@pytest.mark.parametrize("name", [*SPECS, "phases"])
def test_text_names_every_part(name: str) -> None:
    """A reader finds every state, segment, operator result, property and transition with its line."""
    table = compiled(name)
    text = show.text(table)
    assert text.startswith(f"{name}  table {table.digest[:12]}\n")
    for state in table.states:
        assert state.name in text
    for plan in table.forwards.values():
        for segment in plan.segments:
            # Of many groups the first two and the last are listed.
            assert segment.name in text or 1 < segment.group < plan.segments[-1].group
        for operator in plan.operators:
            assert ", ".join(operator.out) in text
    for sentence in (*table.always, *table.sometimes):
        assert sentence in text
    for row in table.rows:
        assert row.built_in or f"line {row.line}\n" in text
    assert max(map(len, text.splitlines())) <= 130


def test_text_of_a_forward() -> None:
    """Rows, positions, weights, logits use, KV fate and the block mask stand in one readable block."""
    expected = """\
forward draft: causal, 4 rows
  rows  segment  source   position  weights  logits   KV
  0     seed     pending  kv        base     shifted  keep
  1..3  noise    noise    kv + 1    adapter  shifted  scratch
  sample seed: a draw of the target law -> first
  sample noise: a draw of the draft law -> new, law
  block mask: a row sees all committed KV, and of its block: █ keep, ▓ provisional, ▒ scratch
                               0 1 2 3
     0  seed keep             ██······
     1  noise adapter scratch ██▒▒····
     2                        ██▒▒▒▒··
     3                        ██▒▒▒▒▒▒
"""
    assert expected in show.text(compiled("uno_linear"))


def test_text_of_transitions() -> None:
    """Guards, keep, emit and set read as they are written, and the life cycle is told apart."""
    text = show.text(compiled("isd"))
    assert (
        "  verify  a == 3  -> verify  keep 4; emit drafts, next; set pending = next, drafts = new  line 36\n"
        in text
    )
    assert (
        "  verify  a < 3   -> cold    keep a + 1; emit drafts[:a], next; set pending = next        line 37\n"
        in text
    )
    assert "  verify gives a in 0..3\n" in text
    assert "set pending = text[fill]\n" in text
    assert "  fill = max(prompt + emitted - 1, prompt): the slots that prefill writes\n" in text


def test_text_of_ragged_rows_and_lookup() -> None:
    """A count that reads a column is shown, and a forward without rows says so."""
    text = show.text(compiled("ngram"))
    assert "forward propose: no rows - no model runs here\n" in text
    assert "lookup: at most 4 tokens after the newest 2 to 4 in the text -> proposed, count\n" in text
    assert "  1..4  judged   drafts[:found]  found  kv + 1    base     shifted  provisional\n" in text
    assert "accept by rejection: drafts[:found] judged by anchor, judged -> a, next\n" in text


def test_masks_of_many_rows_have_a_line_a_run() -> None:
    """Beyond a screen's lines, like rows share one; repeated groups are left out, the last is not."""
    assert "    0      seed keep           █ ·\n    1..31  judged provisional  █ ◣\n" in show.text(
        compiled("linear_spec")
    )
    text = show.masks(compiled("quadratic", b=12))
    assert text.startswith("quadratic  b = 12\n\nforward boot: groups, 13 rows\n")
    expected = """\
    13        head[1] provisional   █ · · ▓ · · ⋯ · · ·
    14        known[1] scratch      █ · · ▓ ▒ ▒ ⋯ · · ·
    15..25    masks[1] scratch      █ · · ▓ ▒ ▒ ⋯ · · ·
    ...                             ⋮ ⋮ ⋮ ⋮ ⋮ ⋮ ⋱
    143       head[11] provisional  █ · · ▓ · · ⋯ ▓ · ·
"""
    assert expected in text
    assert "head[2]" not in text
    assert "  one row, which sees itself and all committed KV\n" in show.masks(compiled("ar"))
    assert "forward propose: no rows\n\nforward verify:" in show.masks(compiled("ngram"))


def test_masks_of_a_tree_are_those_of_an_example() -> None:
    """A node sees its ancestors and itself; the example grows best first, as the operator does."""
    text = show.masks(compiled("uno_tree", b=3, k=3, v=5))
    expected = """\
  of an example tree, 5 nodes, each rank half as likely as the one before:
                 0 1 2 3 4
     0  root    ▓▓········
     1  below 0 ▓▓▓▓······
     2  below 0 ▓▓··▓▓····
     3  below 1 ▓▓▓▓··▓▓··
     4  below 0 ▓▓······▓▓
"""
    assert expected in text
    assert "the first 12 of 32 nodes" in show.text(compiled("uno_tree"))
    # No child below the last depth, and no more nodes than such a tree has.
    assert (-1, 0, 0) == block_mask.example_tree(9, 2, 1)


@pytest.mark.parametrize("name", SPECS)
def test_masks_as_svg_show_every_cell(name: str) -> None:
    """A drawing that leaves out or adds a visible cell shows another mask than the kernels use."""
    table = compile_table(load(name).spec, check=True)
    root = ET.fromstring(mask_drawing.svg(table))  # noqa: S314 - our own text
    space = "{http://www.w3.org/2000/svg}"
    size = str(mask_drawing.CELL - 1)
    drawn = Counter(
        node.get("fill")
        for node in root.iter(f"{space}rect")
        if (node.get("width"), node.get("height")) == (size, size)
    )
    expected: Counter[str | None] = Counter()
    for plan in table.forwards.values():
        shown = block_mask.picture(table, plan, mask_drawing.MOST_NODES)
        for row in shown.mask if plan.rows else ():
            for seen, fate in zip(row, shown.fates, strict=True):
                expected[mask_drawing.FATES[fate] if seen else mask_drawing.UNSEEN] += 1
    drawn.pop("url(#fsm-adapter)", None)
    assert expected == drawn
    words = {node.text for node in root.iter(f"{space}text")}
    for plan in table.forwards.values():
        assert plan.tree is not None or {segment.name for segment in plan.segments} <= words


def test_long_masks_as_svg_are_cut() -> None:
    """A block of a thousand rows is drawn by a few of each run, and the last says how many there are."""
    root = ET.fromstring(mask_drawing.svg(compiled("quadratic", b=32)))  # noqa: S314 - our own text
    words = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"head[0]", "head[1]", "head[31]", "row 1055"} <= words
    assert "head[2]" not in words
    assert float(root.get("height", "0")) < 1000


def test_styled_masks_have_the_same_characters() -> None:
    """Colour adds nothing and takes nothing away."""
    table = compiled("uno_tree")
    assert show.masks(table) == show.styled_masks(table).plain


def test_text_of_an_abstract_model() -> None:
    """Without forwards there is no peak, no prefill and no completion; events have names and ranges."""
    text = show.text(compiled("phases"))
    assert "kv + 0" not in text
    assert "admission by the policy" in text
    assert "prefill" not in text
    assert "  verify  judge" in text
    assert "  judge gives a in 0..2\n" in text
    assert "  require    window <= total\n" in text


def test_slots_apart_from_positions_are_shown() -> None:
    """A segment whose slot is not its position shows both; the others do not repeat it."""
    table = compiled("ar")
    plan = table.forwards["decode"]
    segment = replace(plan.segments[0], at=parse("kv + 1"))
    moved = replace(table, forwards={"decode": replace(plan, segments=(segment,))})
    assert "position  slot  weights" in show.text(moved)
    assert "position  weights" in show.text(table)


def test_pieces_read_as_written() -> None:
    """A compiled slice of the whole is the name alone; one token and open ends are short."""
    table = compiled("isd")
    pieces = [
        Piece("drafts", Const(0), Const(3)),
        Piece("drafts", Const(1), Const(3)),
        Piece("drafts", Const(0), Name("a")),
        Piece("drafts", parse("a"), parse("a + 1")),
        Piece("drafts", Const(1), Name("a")),
        Piece("mask"),
    ]
    expected = "drafts, drafts[1:], drafts[:a], drafts[a], drafts[1:a], mask"
    assert expected == diagram.pieces_text(pieces, table)


def test_styled_text_has_the_same_characters() -> None:
    """Colour adds nothing and takes nothing away."""
    table = compiled("uno_linear")
    assert show.text(table) == show.styled(table).plain


def test_mermaid() -> None:
    """Mermaid gets no bare `end`, which it reads as a keyword, and no colon or comparison inside a label."""
    text = diagram.mermaid(compiled("isd"))
    assert text.startswith("stateDiagram-v2\n  [*] --> wait\n")
    assert "  verify --> cold: [a #lt; 3]<br/>keep a + 1<br/>emit drafts[#58;a], next\n" in text
    assert "  end_: end\n  end_ --> [*]\n" in text
    assert "  class cold draft\n" in text
    assert all(line.count(":") <= 1 for line in text.splitlines() if "-->" in line)
    assert "[*] --> draft\n" in diagram.mermaid(compiled("phases"))


def test_dot() -> None:
    """Graphviz gets quoted names and one edge a transition."""
    text = diagram.dot(compiled("uno_linear"))
    assert text.startswith("digraph uno_linear {\n")
    assert '  "verify" -> "draft" [label="keep a + 1\\nemit clean, drafts[:a], next"];\n' in text
    assert '"verify" -> "end" [label="stop or limit", color="#a0aec0", fontcolor="#718096"];' in text
    assert '  "draft" -> "verify" [label="propose"];\n' in diagram.dot(compiled("phases"))


@pytest.mark.parametrize("name", [*SPECS, "phases"])
def test_svg_is_complete(name: str) -> None:
    """The drawing is well-formed XML of its own, and shows every state and every word of an arrow."""
    table = compiled(name)
    root = ET.fromstring(drawing.svg(table))  # noqa: S314 - our own text
    words = {"".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {state.name for state in table.states} <= words
    for edge in diagram.edges(table):
        assert set(edge.lines) <= words


def knotted(states: int) -> Table:
    """Compile a model in which every state leads to every state, itself included: the worst a diagram can meet."""
    names = [f"s{number}" for number in range(states)]
    rows = "\n".join(
        f"  - {{from: {a}, on: go, when: a == {index}, to: {b}}}"
        for a in names
        for index, b in enumerate(names)
    )
    marks = dict.fromkeys(names, "false") | {"s0": "true"}
    listed = "\n".join(f"  {n}: {{phase: draft, round: true, start: {marks[n]}, kv: {{}}}}" for n in names)
    text = (
        f"spec: knotted\nstates:\n{listed}\n"
        f"events: {{go: {{args: {{a: {{range: [0, {states - 1}]}}}}}}}}\n"
        f"transitions:\n{rows}\ncheck: {{eventually: s0}}\n"
    )
    return compile_table(loads(text, "knotted.yaml").spec)


def boxes(placed: layout.Layout) -> list[tuple[float, float, float, float]]:
    """Give the boxes of states and words: left, top, right, bottom."""
    half_width, half_height = layout.NODE_WIDTH / 2, layout.NODE_HEIGHT / 2
    found = [(n.x - half_width, n.y - half_height, n.x + half_width, n.y + half_height) for n in placed.nodes]
    for arrow in placed.arrows:
        if not arrow.edge.lines:
            continue
        left = {
            "straight": arrow.source.x + 10,
            "loop": arrow.source.x + half_width + layout.LOOP_REACH,
            "left": arrow.lane_x - 8 - arrow.label_width,
            "right": arrow.lane_x + 8,
        }[arrow.kind]
        found.append((left, arrow.label_y, left + arrow.label_width, arrow.label_y + arrow.label_height))
    return found


@pytest.mark.parametrize(
    "table", [*(compiled(name) for name in [*SPECS, "phases"]), knotted(4)], ids=lambda t: t.name
)
def test_nothing_overlaps_in_a_drawing(table: Table) -> None:
    """Words never cover a state, other words, or a lane; everything lies inside the picture."""
    placed = layout.layout(table)
    found = boxes(placed)
    for one, other in combinations(found, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    for left, top, right, bottom in found:
        assert 0 <= left
        assert right <= placed.width
        assert 0 <= top
        assert bottom <= placed.height
        for arrow in placed.arrows:
            if arrow.kind in ("left", "right"):
                high, low = sorted((arrow.source_y, arrow.target_y))
                assert not (left < arrow.lane_x < right and high < bottom and top < low)


def test_command_shows_masks(tmp_path: Path) -> None:
    """The option prints the masks alone, or writes their drawing; what has none, or cannot be drawn so, is told."""
    told = CliRunner().invoke(application(), ["show", "isd", "--masks"])
    assert (0, show.masks(compiled("isd"))) == (told.exit_code, told.stdout)
    drawn = tmp_path / "masks.svg"
    CliRunner().invoke(application(), ["show", "isd", "--masks", "--format", "svg", "--output", str(drawn)])
    assert mask_drawing.svg(compiled("isd")) == drawn.read_text()
    with pytest.raises(UserError, match="which is what dot draws; take --format text or svg"):
        command.show("isd", "dot", {}, None, masks=True)
    with pytest.raises(UserError, match="pool has no forwards, so it has no block masks"):
        command.show(
            str(Path(__file__).resolve().parents[2] / "data" / "pool.yaml"), "text", {}, None, masks=True
        )
