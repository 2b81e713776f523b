"""Write the reference pages from what they describe: models, operators, findings, catalogue, options of commands.

`scripts/reference.py` writes docs/reference/*.md and the tables between the marks `<!-- options: NAME -->` and
`<!-- end -->` of docs/cli.md; with `--check` it only says which of them are out of date. Findings are those that the
slips in docs/reference/faults.yaml bring out.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fsm_spec.cli import application
from fsm_spec.language import expression, spec
from fsm_spec.language.expression import Const, Name, to_text
from fsm_spec.language.findings import SpecFindings
from fsm_spec.language.operators import OPERATORS, Operator, Output
from fsm_spec.language.scope import Scope
from fsm_spec.load import load, loads, shipped
from fsm_spec.rules.resizing import live_carries
from fsm_spec.simulator.hardware import LINEAR_FIELDS, Hardware, Linear, hardware_names, load_hardware
from fsm_spec.simulator.model import load_model, model_names

PROJECT: Final = Path(__file__).resolve().parent.parent
NOTE: Final = "<!-- Written by scripts/reference.py; change what it reads, not this page. -->"
COMMANDS_PAGE: Final = "docs/cli.md"
FAULTS: Final = "docs/reference/faults.yaml"
BLOCK: Final = re.compile(r"(<!-- options: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in lines)


def page(title: str, *parts: str) -> str:
    """Join the parts of a page that is written whole."""
    return "\n".join([f"# {title}\n", f"{NOTE}\n", *parts])


# Grammar ------------------------------------------------------------------------------------------------------

# In the order in which a spec is read.
MODELS: Final[tuple[tuple[type[BaseModel], str], ...]] = (
    (spec.Spec, "The file: one decode algorithm."),
    (spec.Lossless, "What the spec claims about its output."),
    (spec.Param, "An integer that is fixed for a run."),
    (spec.Column, "A bounded integer that every request carries and that guards, counts and traces read."),
    (spec.Carry, "A tensor that every request carries from round to round."),
    (spec.BlockContract, "The contract that KV ends with a whole block where a round starts."),
    (spec.DraftModel, "A model beside the target, with a KV cache of its own."),
    (spec.Forward, "One pass of a model, and the operators on its logits."),
    (spec.Groups, "Rows that are repeated in groups."),
    (
        spec.Segment,
        "A run of rows of a forward's block with the same source, weights, logits use and KV fate.",
    ),
    (spec.Sample, "The operator `sample`: one token for each row."),
    (spec.Accept, "The operator `accept`: how many drafts stand, and the token after them."),
    (spec.Unmask, "The operator `unmask`: some masks of a block become tokens."),
    (spec.Grow, "The operator `grow`: a tree of drafts."),
    (spec.Prune, "The operator `prune`: the best nodes of a tree."),
    (spec.Walk, "The operator `walk`: how far the target agrees with a tree."),
    (spec.Budget, "The operator `budget`: how many drafts of each request are verified."),
    (spec.Capture, "The operator `capture`: hidden states of rows."),
    (spec.Lookup, "The operator `lookup`: drafts from the request's own text."),
    (spec.State, "Where a request stands in a round; wait, prefill and end are built in."),
    (spec.Holding, "KV slots by kind."),
    (spec.Transition, "What one event does to a request; all right-hand sides read the values before it."),
    (spec.Check, "The properties that `fsm-spec check` decides besides the built-in ones."),
    (spec.Event, "An event of an abstract model."),
    (spec.EventArg, "An argument of such an event."),
)
OPERATIONS: Final = ("Sample", "Accept", "Unmask", "Grow", "Prune", "Walk", "Budget", "Capture", "Lookup")
WORDS: Final[tuple[tuple[Any, str], ...]] = (
    (spec.IntExpr, "expression"),
    (spec.BoolExpr, "condition"),
    (spec.PieceText, "piece"),
    (spec.Assignment, "expression, piece or list of pieces"),
    (spec.NameText, "name"),
    (spec.SourceText, "piece, or list of pieces"),
    (spec.Operation, "an operator: " + ", ".join(f"[{name}](#{name.lower()})" for name in OPERATIONS)),
    (spec.Flag, "`true` or `false`"),
    (spec.Small, "integer"),
    (str, "text"),
)


def words(hint: Any) -> str:  # noqa: ANN401 - types as values
    """Say in words what may stand under a key."""
    known = [text for kind, text in WORDS if kind == hint]
    origin, args = get_origin(hint), get_args(hint)
    if known:
        return known[0]
    if origin is Annotated:
        return words(args[0])
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(words(arg) for arg in args if arg is not type(None))
    if origin is dict:
        keys = "sentence" if args[0] is str else "name"
        return f"mapping of {keys} to {words(args[1])}"
    if origin is list:
        return f"list of {words(args[0])}"
    if origin is tuple:
        return f"[{', '.join(words(arg) for arg in args)}]"
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


def default_of(model: type[BaseModel], name: str) -> str:
    """Give the default of a field as a spec spells it."""
    field = model.model_fields[name]
    value = field.default
    if field.is_required():
        return "required"
    if isinstance(value, Const):
        return f"`{to_text(value)}`"
    if value in (None, "", PydanticUndefined):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def grammar() -> str:
    """Describe every key of a spec file."""
    parts = [
        "Every key of a spec file, what may stand there, and what it means; [the language](../language.md) says why.",
        "The same texts stand in `specs/schema.json`, so that an editor shows them.\n",
    ]
    for model, sentence in MODELS:
        hints = get_type_hints(model, include_extras=True)
        rows = [
            [
                f"`{field.alias or name}`",
                words(hints[name]),
                default_of(model, name),
                field.description or "",
            ]
            for name, field in model.model_fields.items()
        ]
        head = ["key", "value", "default", "meaning"]
        parts.append(f"## {model.__name__}\n\n{sentence}\n\n{table(head, rows)}")
    return page("Grammar", *parts)


# Operators ----------------------------------------------------------------------------------------------------


def operators() -> str:
    """Describe the registry of operators."""
    rows = [
        [f"`{each.key}`", each.about, ", ".join(outputs(each)), each.source] for each in OPERATORS.values()
    ]
    return page(
        "Operators",
        "The closed set of operators that a forward may run on its logits, and what each gives.",
        "`rows` is the number of rows that the operator reads.",
        "A count is an argument of the forward's completion, which guards and effects may read.",
        "[The language](../language.md#operators) gives the formulas, [the grammar](grammar.md#sample) the keys.\n",
        table(["operator", "what it does", "gives, in order", "source"], rows),
    )


def outputs(operator: Operator) -> Iterator[str]:
    """Say what an operator gives, in the names of its own keys."""
    names = ("size", "left", "steps", "depth", "quota", "top")
    inputs = SimpleNamespace(rows="rows", freeze=None, path=None, **{name: Name(name) for name in names})
    for output in operator.outputs:
        most = output.most(inputs, lambda _: Name("rows"))
        assert most is not None
        yield _described(output, to_text(most))


def _described(output: Output, most: str) -> str:
    if output.kind == "count":
        return f"a count from 0 to {most}"
    words = {
        "token": "token",
        "law": "law",
        "index": "row of the block",
        "tree": "node of a tree",
        "feature": "hidden state",
        "real": "number",
    }
    first, _, rest = words[output.kind].partition(" ")
    return f"{most} {first}{'' if most == '1' else 's'}{f' {rest}' if rest else ''}"


# Findings -----------------------------------------------------------------------------------------------------


def findings() -> str:
    """Plant every slip of faults.yaml and write what is found."""
    parts = [
        "What the loader finds, shown on slips of the pen in the shipped specs and in those of docs/examples.",
        "Every finding is one line, `file:line:column: path: what is wrong; the way out`; one run gives all of a file.",
        "A word that is nearly right is read as the right one, so that the rest of the file is still judged.\n",
    ]
    for section in yaml.safe_load((PROJECT / FAULTS).read_text(encoding="utf-8")):
        parts.append(f"## {section['title']}\n")
        parts += [f"{section['about'].strip()}\n"] if "about" in section else []
        parts += [_finding(fault) for fault in section["faults"]]
    return page("Findings", *parts)


def _finding(fault: dict[str, str]) -> str:
    name, old, new = fault["in"], fault["old"], fault["new"]
    example = PROJECT / "docs" / "examples" / f"{name}.yaml"
    text = (example if example.exists() else PROJECT / "specs" / f"{name}.yaml").read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(
            f"{FAULTS}: {old!r} stands {text.count(old)} times in {name}; it must stand there once"
        )
    try:
        loads(text.replace(old, new), name)
    except SpecFindings as found:
        lines = [str(finding) for finding in found.findings]
    else:
        raise SystemExit(f"{FAULTS}: {old!r} -> {new!r} in {name} brings out no finding")
    edit = f"`{old.strip()}` becomes `{new.strip()}`" if new else f"without `{old.strip()}`"
    told = fault.get("say", edit)
    return f"In `{name}`, {told}:\n\n```text\n" + "\n".join(lines) + "\n```\n"


# Shipped specs ------------------------------------------------------------------------------------------------


def specs() -> str:
    """List the shipped specs with what they claim, and what of their output is identical or equal in law."""
    known = [load(path).spec for _, path in sorted(shipped().items())]
    claims = [
        [f"`{each.spec}`", _claim(each), _judges(each), each.lossless.why, each.source]
        for each in known
        if each.lossless is not None
    ]
    about = [f"## {each.spec}\n\n{_wrapped(each.about)}\n\n{_params(each)}" for each in known]
    return page(
        "Shipped specs",
        "Written from the specs themselves: what each claims and why, where it comes from, and how it judges drafts.",
        "[The language](../language.md#claims) says what a claim promises, and how promises are tested.\n",
        table(["spec", "claim", "drafts judged by", "because", "source"], claims),
        "## What is identical, and what is equal in law\n",
        "Compared with plain decoding (`ar`) of the same request with the same seed, where logits do not depend on the",
        "batch (float32 or wider). The last columns compare a request with itself: in another batch, and preempted",
        "half-way. It follows from how drafts are judged, and from what a round takes over from the one before:",
        "what a preemption drops may be proposed anew, and other proposals give other tokens of the same law.",
        "Where a policy chooses sizes by load (`tier`), proposals depend on the load as well.\n",
        table(
            ["spec", "temperature 0", "temperature above 0", "in a batch", "after preemption"],
            [[f"`{each.spec}`", *promises(each)] for each in known],
        ),
        *about,
    )


def _claim(each: spec.Spec) -> str:
    assert each.lossless is not None
    return "none" if each.lossless.claim == "no" else each.lossless.claim


def _judges(each: spec.Spec) -> str:
    rules = dict.fromkeys(
        f"{'walk by ' if isinstance(op, spec.Walk) else ''}{op.rule}"
        for forward in each.forwards.values()
        for op in forward.ops
        if isinstance(op, (spec.Accept, spec.Walk))
    )
    return ", ".join(rules) or "nothing"


def _wrapped(text: str) -> str:
    """Write one line a sentence."""
    return re.sub(r"(?<=[.]) +(?=[A-Z])", "\n", " ".join(text.split()))


def _params(each: spec.Spec) -> str:
    rows = [
        [f"`{name}`", f"{each.range[0]} to {each.range[1]}", str(each.default), each.about]
        for name, each in each.params.items()
    ]
    return table(["parameter", "range", "default", "meaning"], rows) if rows else "No parameters.\n"


def promises(each: spec.Spec) -> list[str]:
    """Say what of a spec's output is identical: at temperature 0, above it, in a batch, after preemption."""
    claim = each.lossless.claim if each.lossless is not None else "no"
    rules = {
        op.rule
        for forward in each.forwards.values()
        for op in forward.ops
        if isinstance(op, (spec.Accept, spec.Walk))
    }
    # Without a judge a block that a preemption drops is filled again, by the same draws.
    after = "may differ" if rules and crosses(each) else "identical"
    if claim == "no":
        return ["no promise", "no promise", "identical", after]
    if claim == "greedy":
        # Above temperature 0 a prefill draws its token, which the rounds behind it would not have.
        return [
            "identical",
            "those of temperature 0, behind a drawn first one",
            "identical",
            "at temperature 0",
        ]
    if rules <= {"match"}:
        return ["identical"] * 4
    return ["identical", "the same law", "identical", "the same law" if crosses(each) else "identical"]


def crosses(each: spec.Spec) -> bool:
    """Tell whether a round depends on more than the text: its state, a column or a carry of the round before."""
    rounds = [name for name, state in each.states.items() if state.round]
    live = {name for start in rounds for name in live_carries(Scope(each), start)} & set(each.carry)
    moved = [
        value
        for transition in each.transitions
        if transition.to in rounds
        for name, value in transition.set.items()
        if name in each.columns
        and not set(expression.names(expression.parse(str(value)))) <= set(each.params)
    ]
    return len(rounds) > 1 or bool(live) or bool(moved)


# Catalogue ----------------------------------------------------------------------------------------------------


def catalogue() -> str:
    """List the accelerators and models that ship with the simulator, and where their numbers come from."""
    hardware = [load_hardware(name) for name in hardware_names()]
    fields = ("bf16_tflops", "fp8_tflops", "hbm_gb_s", "hbm_gb", "watts", "link_gb_s")
    peaks = [
        [f"`{each.name}`", each.title, *(f"{getattr(each, field) or 0:g}" for field in fields)]
        for each in hardware
    ]
    head = ["name", "sold as", "bf16 TFLOPS", "fp8 TFLOPS", "memory GB/s", "memory GB", "W", "link GB/s"]
    return page(
        "Catalogue",
        "What `fsm-spec simulate` knows by name; case and the marks `-`, `_`, `.` do not matter.",
        "[Simulating](../guides/simulate.md) says how these numbers are used and what they are worth.\n",
        "## Accelerators\n\nDense peaks; 0 stands for units that are not there.\n",
        table(head, peaks),
        "## What kernels reach\n",
        f"{Linear.__doc__}\n" if Linear.__doc__ else "",
        "Between two points a share is a power law; above the last it stays.\n",
        *(_linear(field, hardware) for field in LINEAR_FIELDS.values()),
        *(_curves(field, hardware) for field in ("decode_attention_mbu", "prefill_attention_mfu")),
        _reductions(hardware),
        "## Sources\n",
        *(_sources(each) for each in hardware),
        "## Models\n",
        table(["name", "parameters", "layers", "hidden", "KV bytes a token", "context", "source"], _models()),
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    """Write the points of a curve."""
    return ", ".join(f"{x:g}: {y:g}" for x, y in points)


def _linear(field: str, hardware: list[Hardware]) -> str:
    """List the kernels of linear layers of all accelerators."""
    rows = []
    for each in hardware:
        kernels = getattr(each, field)
        numbers = (f"{kernels.start_us:g}", f"{kernels.mbu:g}", f"{kernels.overlap:g}")
        rows.append([f"`{each.name}`", *numbers, _points(kernels.mfu)])
    head = ["name", "start_us", "mbu", "overlap", "mfu by rows"]
    return f"### {field}\n\n{Hardware.model_fields[field].description}\n\n{table(head, rows)}"


def _reductions(hardware: list[Hardware]) -> str:
    """List the measured all-reduces."""
    rows = [
        [f"`{each.name}`", str(count), _points(points)]
        for each in hardware
        for count, points in each.all_reduce_us.items()
    ]
    about = Hardware.model_fields["all_reduce_us"].description
    return f"### all_reduce_us\n\n{about}\n\n{table(['name', 'accelerators', 'us by bytes'], rows)}"


def _curves(field: str, hardware: list[Hardware]) -> str:
    rows = [[f"`{each.name}`", _points(getattr(each, field))] for each in hardware]
    return f"### {field}\n\n{Hardware.model_fields[field].description}\n\n{table(['name', 'points'], rows)}"


def _sources(hardware: Hardware) -> str:
    rows = [[f"`{field}`", source] for field, source in sorted(hardware.sources.items())]
    return f"### {hardware.name}\n\n{table(['number', 'source'], rows)}"


def _models() -> list[list[str]]:
    rows = []
    for name in model_names():
        shape = load_model(name)
        counts = (shape.parameters, shape.num_hidden_layers, shape.hidden_size, shape.kv_bytes())
        context = f"{shape.max_position_embeddings:,}" if shape.max_position_embeddings else ""
        rows.append([f"`{name}`", *(f"{count:,}" for count in counts), context, shape.source])
    return rows


# Commands -----------------------------------------------------------------------------------------------------


def commands(app: typer.Typer, before: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the words and the function of each command of an application and of its groups."""
    for known in app.registered_commands:
        assert known.callback is not None
        yield f"{before}{known.name or known.callback.__name__}", known.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{before}{group.name} ")


def options(function: Callable[..., Any]) -> str:
    """Lay out arguments and options of a command, with their defaults."""
    hints = get_type_hints(function, include_extras=True)
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])[:2]
        argument = isinstance(info, typer.models.ArgumentInfo)
        spelled = info.metavar if argument else _spelled(name, info, kind)
        default = _default(parameter.default) if "/" not in spelled else _of_two(spelled, parameter.default)
        rows.append([f"`{spelled}`", default, info.help or ""])
    return table(["option", "default", "meaning"], rows)


def _of_two(spelled: str, default: object) -> str:
    """Give the spelling that stands for a default of an option with two spellings."""
    yes, no = spelled.split("/")
    return "" if default is None else f"`{yes if default else no}`"


def _spelled(name: str, info: Any, kind: Any) -> str:  # noqa: ANN401 - of a class that typer does not name
    # Beside `Annotated`, typer keeps the first spelling as the default.
    first = [info.default] if isinstance(info.default, str) else []
    declared = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
    return f"{', '.join(declared)} {info.metavar or _value(kind)}".strip()


def _value(kind: Any) -> str:  # noqa: ANN401 - types as values
    inner = [arg for arg in get_args(kind) if arg is not type(None)]
    if inner:
        return _value(inner[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(member.value) for member in kind)
    return {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", bool: ""}[kind]


def _default(value: Any) -> str:  # noqa: ANN401 - defaults of any type
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is False:
        return ""
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def with_options(text: str) -> str:
    """Write the tables of options into a page; a command without its marks is an error."""
    known = {name: options(function) for name, function in commands(application())}
    marked = {match[2] for match in BLOCK.finditer(text)}
    if marked != set(known):
        raise SystemExit(
            f"{COMMANDS_PAGE}: marks and commands differ in {', '.join(sorted(marked ^ set(known)))}"
        )
    return BLOCK.sub(lambda match: f"{match[1]}\n{known[match[2]]}\n{match[3]}", text)


def written(root: Path) -> dict[str, str]:
    """Give the text of every page below a project's folder as it should be."""
    return {
        "docs/reference/grammar.md": grammar(),
        "docs/reference/operators.md": operators(),
        "docs/reference/findings.md": findings(),
        "docs/reference/catalogue.md": catalogue(),
        "docs/reference/specs.md": specs(),
        COMMANDS_PAGE: with_options((root / COMMANDS_PAGE).read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write the pages, or say which are out of date; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the reference pages.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a page is out of date"
    )
    parser.add_argument("--root", type=Path, default=PROJECT, help="folder that holds docs/")
    asked = parser.parse_args()
    stale = []
    for name, text in written(asked.root).items():
        path = asked.root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not asked.check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is out of date; run scripts/reference.py" if asked.check else f"{name} written")
    return int(asked.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
