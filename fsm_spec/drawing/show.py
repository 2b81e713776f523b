"""A table as text for reading: states, row plans, block masks, transitions; diagrams are in `diagram.py`.

The text is the same in a terminal and in a file; `styled` adds colour and changes no character.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.text import Text

from fsm_spec.drawing import block_mask
from fsm_spec.drawing.diagram import effect, guard_text, label, pieces_text
from fsm_spec.language.expression import Const, to_text
from fsm_spec.plan import KINDS
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.plan import ForwardPlan, OperatorPlan, SegmentPlan
    from fsm_spec.table import ArgPlan, Row, Table

WIDTH: Final = 100
# Guards and effects are folded beyond these, so that a line of transitions stays about as wide as the rest.
GUARD, EFFECT, LIFE_EFFECT = 40, 66, 46
CONTRACTS: Final = {
    "pending": "kv = prompt + emitted - 1 where a round starts: the newest token has no KV yet",
    "full": "kv = prompt + emitted where a round starts",
    "block": "where a round starts, the tokens of whole blocks have KV, those of the last unfinished block have none",
}
# Groups that the rows of a forward are listed for; more show nothing new.
MOST_GROUPS: Final = 4
FATE_STYLES: Final = {"keep": "blue", "provisional": "green", "open": "magenta", "scratch": "yellow"}
PHASE_STYLES: Final = {"draft": "yellow", "verify": "green", "commit": "blue", "refresh": "magenta"}


def text(table: Table) -> str:
    """Describe a table for a reader, in lines of about 100 characters."""
    parts = [_head(table), _states(table)]
    parts += [_forward(table, plan) for plan in table.forwards.values()]
    parts += [_transitions(table), _life_cycle(table), _check(table)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def styled(table: Table) -> Text:
    """Give the same text with headings, states and masks in colour."""
    result = Text(text(table), no_wrap=True)
    result.highlight_regex(r"(?m)^\S.*$", "bold")
    _coloured(result)
    result.highlight_regex(r"(?m)line \d+$", "dim")
    for state in table.states:
        style = PHASE_STYLES.get(state.phase, "dim")
        result.highlight_regex(rf"(?m)(?<=^  ){state.name}\b|(?<=-> ){state.name}\b", style)
    return result


def masks(table: Table) -> str:
    """Draw the block mask of every forward that has rows, and nothing else."""
    parts = [
        [f"{table.name}  {', '.join(f'{name} = {value}' for name, value in table.params.items())}".rstrip()]
    ]
    for plan in table.forwards.values():
        one = ["  one row, which sees itself and all committed KV"] if plan.rows == 1 else []
        parts.append([_title(plan), *one, *block_mask.text(table, plan)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def styled_masks(table: Table) -> Text:
    """Give the same text as `masks` with cells coloured by the fate of what is seen."""
    result = Text(masks(table), no_wrap=True)
    result.highlight_regex(r"(?m)^\S.*$", "bold")
    _coloured(result)
    return result


def _coloured(result: Text) -> None:
    for fate, mark in block_mask.SEEN.items():
        result.highlight_regex(f"{mark}+", FATE_STYLES[fate])


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Align the cells of rows in columns, two spaces apart; empty columns disappear."""
    used = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in used}
    return [indent + "  ".join(row[index].ljust(widths[index]) for index in used).rstrip() for row in rows]


def _wrapped(name: str, value: str) -> list[str]:
    lead = f"  {name:<11}"
    return textwrap.wrap(value, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))


def _head(table: Table) -> list[str]:
    spec = table.spec
    lines = [f"{table.name}  table {table.digest[:12]}"]
    lines += textwrap.wrap(spec.about, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if spec.source:
        lines += _wrapped("source", spec.source)
    if spec.lossless:
        lines += _wrapped("lossless", f"{spec.lossless.claim}: {spec.lossless.why}")
    if table.contract:
        lines += _wrapped("contract", f"{table.contract}: {CONTRACTS[table.contract]}")
    for index, (name, param) in enumerate(spec.params.items()):
        low, high = param.range
        tiered = ", tiered" if param.tiered else ""
        about = f": {param.about}" if param.about else ""
        lines += _wrapped(
            "" if index else "params", f"{name} = {table.params[name]} ({low} to {high}{tiered}){about}"
        )
    for index, condition in enumerate(spec.require):
        lines += _wrapped("" if index else "require", to_text(condition))
    for index, model in enumerate(table.models.values()):
        about = spec.models[model.name].about
        lag = f"its cache {to_text(model.behind)} rows behind"
        value = f"{model.name}: {model.kind}, {lag}{': ' + about if about else ''}"
        lines += _wrapped("" if index else "models", value)
    for index, column in enumerate(table.columns):
        about = spec.columns[column.name].about
        value = f"{column.name} (0 to {column.max}, starts at {to_text(column.init)}){': ' + about if about else ''}"
        lines += _wrapped("" if index else "columns", value)
    for index, carry in enumerate(table.carry):
        shape = " x ".join("vocabulary" if size is None else str(size) for size in carry.shape)
        lines += _wrapped(
            "" if index else "carry",
            f"{carry.name}: {shape} {carry.type}{'s' if carry.shape != (1,) else ''}",
        )
    return lines


def _states(table: Table) -> list[str]:
    rows = [["state", "phase", "", "forward", *KINDS, "peak", "advance"]]
    for state in table.states:
        if state.built_in:
            continue
        mark = "start" if state.start else "round" if state.round else ""
        held = [to_text(state.holding[kind]) for kind in KINDS]
        need = [f"kv + {state.peak}", str(state.advance)] if state.round and table.contract else ["", ""]
        rows.append([state.name, state.phase, mark, state.forward or "", *held, *need])
    title = "states: KV slots held"
    if table.contract:
        title += " while the forward runs, slots a round may need (peak), tokens it keeps at most (advance)"
    return [title, *columns(rows)]


def _forward(table: Table, plan: ForwardPlan) -> list[str]:
    about = table.spec.forwards[plan.name].about
    lines = [f"{_title(plan)}{' - ' + about if about else ''}"]
    if plan.segments:
        rows = [
            ["rows", "segment", "source", "beside", "count", "position", "slot", "weights", "logits", "KV"]
        ]
        groups = block_mask.by_group(plan.segments)
        shown = block_mask.repeated(groups, MOST_GROUPS)
        rows += [_segment(segment, table) for group in shown for segment in group]
        listed = columns(rows)
        if len(shown) < len(groups):
            # Behind the head, and the first two groups, which show how the next ones go on.
            listed.insert(1 + len(shown[0]) + len(shown[1]), "  ...")
        lines += listed
    lines += [f"  {_operator(operator, table)}" for operator in plan.operators]
    return lines + block_mask.text(table, plan)


def _title(plan: ForwardPlan) -> str:
    shape = f"{plan.attention}, {counted(plan.rows, 'row')}" if plan.rows else "no rows"
    return f"forward {plan.name}: {'' if plan.model is None else f'{plan.model}, '}{shape}"


def _segment(segment: SegmentPlan, table: Table) -> list[str]:
    last = segment.first + segment.max_count - 1
    span = str(segment.first) if last == segment.first else f"{segment.first}..{last}"
    return [
        span,
        segment.name,
        pieces_text([segment.source], table),
        "" if segment.features is None else pieces_text([segment.features], table),
        "" if segment.count == Const(segment.max_count) else to_text(segment.count),
        to_text(segment.at),
        "" if segment.slot == segment.at else to_text(segment.slot),
        "adapter" if segment.adapter else "base",
        segment.logits if segment.query else "no query",
        segment.kv,
    ]


def _operator(operator: OperatorPlan, table: Table) -> str:
    """Say in words what an operator reads and gives."""
    number = {name: to_text(value) for name, value in operator.numbers.items()}
    read, rows = operator.read, ", ".join(_joined(operator.rows))
    what = operator.key
    if operator.op == "lookup":
        words = (
            f"at most {number['size']} tokens after the newest {number['min']} to {number['max']} in the text"
        )
    elif operator.op == "accept":
        drafts = pieces_text([operator.drafts], table) if operator.drafts else ""
        law = f" with law {read['q']}" if "q" in read else ""
        what, words = f"accept by {operator.rule}", f"{drafts}{law} judged by {rows}"
    elif operator.op == "unmask":
        what, words = f"unmask by {operator.rule}", f"{read['block']} with {number['left']} masks, by {rows}"
    elif operator.op == "grow":
        what = f"grow by {operator.rule}"
        if operator.rule == "best":
            likeliest = f"the {number['top']} likeliest of each depth of {rows}"
            words = f"{number['size']} nodes from {read['root']}, {likeliest}"
        else:
            words = f"{read.get('tree') or read['root']}, by the {number['top']} likeliest children of {rows}"
    elif operator.op == "prune":
        what, words = "prune", f"the {number['size']} best nodes of {read['tree']}"
    elif operator.op == "budget":
        earlier = f", a total by {read['earlier']}" if "earlier" in read else ""
        what, words = "budget", f"at most {number['size']} drafts by {read['from_']}{earlier}"
    elif operator.op == "walk":
        what, words = f"walk by {operator.rule}", f"{read['tree']} judged by {rows}"
    elif operator.op == "capture":
        along = f" along {read['path']}" if "path" in read else ""
        what, words = "capture", f"the hidden states of {rows}{along}"
    else:
        whose = "draft" if operator.draft else "target"
        how = "a draw" if operator.rule == "law" else "the most likely token"
        head = ", each under the head over the token before" if operator.key != "sample" else ""
        what, words = f"sample {rows}", f"{how} of the {whose} law{head}"
    chosen = [
        f"{name} {number[name]}"
        for name in ("top", "threshold", "bound", "quota")
        if name in number and operator.op != "grow"
    ]
    return f"{what}: {', '.join([words, *chosen])} -> {', '.join(operator.out)}"


def _joined(names: tuple[str, ...]) -> list[str]:
    """Write the rows of several groups as one: `head[0..3]`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        base, _, index = name.partition("[")
        groups.setdefault(base, []).append(index.rstrip("]"))
    return [
        base
        if not found[0]
        else f"{base}[{found[0]}..{found[-1]}]"
        if len(found) > 1
        else f"{base}[{found[0]}]"
        for base, found in groups.items()
    ]


def _folded(rows: Sequence[Sequence[str]], widths: dict[int, int]) -> list[list[str]]:
    """Fold long cells of the columns in `widths` over several rows, at spaces."""
    folded = []
    for row in rows:
        cells = [
            textwrap.wrap(cell, widths[index], break_long_words=False, break_on_hyphens=False) or [""]
            if index in widths
            else [cell]
            for index, cell in enumerate(row)
        ]
        folded += [list(line) for line in zip_longest(*cells, fillvalue="")]
    return folded


def _transitions(table: Table) -> list[str]:
    rows = [["from", "on", "when", "to", "effect", ""]]
    for row in table.rows:
        if not row.built_in:
            on = "" if row.event in row.sources else row.event
            rows += [[source, on, *_row(row, table), f"line {row.line}"] for source in row.sources]
    usual = ": on completion of the state's forward unless `on` names an event" if table.forwards else ""
    lines = [f"transitions{usual}", *columns(_folded(rows, {2: GUARD, 4: EFFECT}))]
    for event in table.events.values():
        if event.args and any(not row.built_in for row in table.rows_of(event.name)):
            given = [f"{arg.name} {_range(arg)}" for arg in event.args]
            lead = f"  {event.name} gives "
            lines += textwrap.wrap(
                ", ".join(given), WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)
            )
    return lines


def _range(arg: ArgPlan) -> str:
    low, high = to_text(arg.low), to_text(arg.high)
    return f"= {low}" if low == high else f"in {low}..{high}"


def _row(row: Row, table: Table) -> list[str]:
    return [guard_text(row, table), f"-> {row.target}", "; ".join(effect(row, table))]


def _life_cycle(table: Table) -> list[str]:
    built_in = [row for row in table.rows if row.built_in]
    rows = [["from", "on", "when", "to", "effect"]]
    rows += [[_sources(row, table), label(row, table), *_row(row, table)] for row in built_in]
    if table.fill is None:
        title = "life cycle, built in: admission by the policy; a blocked request may give its pages back"
        return [title, *columns(rows)]
    title = (
        "life cycle, built in: an emitted run is cut at the first stop token and at the limit, and ends there"
    )
    fill = f"  fill = {to_text(table.fill)}: the slots that prefill writes"
    return [title, *columns(_folded(rows, {2: GUARD, 4: LIFE_EFFECT})), fill]


def _sources(row: Row, table: Table) -> str:
    live = [state.name for state in table.states if state.name in row.sources]
    return "|".join(live)


def _check(table: Table) -> list[str]:
    lines = []
    for condition in ("always", "sometimes"):
        properties = getattr(table, condition).items()
        lines += [f"  {condition:<11}{sentence}: {to_text(value)}" for sentence, value in properties]
    return ["check", *lines, f"  {'eventually':<11}every request reaches {table.eventually}"]
