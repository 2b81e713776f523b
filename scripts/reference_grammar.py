"""The reference pages of the language: every key of a spec file, and every operator."""

from __future__ import annotations

import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from reference_page import page, table

from fsm_spec.language import fields, operations, spec
from fsm_spec.language.expression import Const, Name, to_text
from fsm_spec.language.operators import OPERATORS, Operator, Output

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
    (operations.Sample, "The operator `sample`: one token for each row."),
    (operations.Accept, "The operator `accept`: how many drafts stand, and the token after them."),
    (operations.Unmask, "The operator `unmask`: some masks of a block become tokens."),
    (operations.Grow, "The operator `grow`: a tree of drafts."),
    (operations.Prune, "The operator `prune`: the best nodes of a tree."),
    (operations.Walk, "The operator `walk`: how far the target agrees with a tree."),
    (operations.Budget, "The operator `budget`: how many drafts of each request are verified."),
    (operations.Capture, "The operator `capture`: hidden states of rows."),
    (operations.Lookup, "The operator `lookup`: drafts from the request's own text."),
    (spec.State, "Where a request stands in a round; wait, prefill and end are built in."),
    (spec.Holding, "KV slots by kind."),
    (spec.Transition, "What one event does to a request; all right-hand sides read the values before it."),
    (spec.Check, "The properties that `fsm-spec check` decides besides the built-in ones."),
    (spec.Event, "An event of an abstract model."),
    (spec.EventArg, "An argument of such an event."),
)
OPERATIONS: Final = ("Sample", "Accept", "Unmask", "Grow", "Prune", "Walk", "Budget", "Capture", "Lookup")
WORDS: Final[tuple[tuple[Any, str], ...]] = (
    (fields.IntExpr, "expression"),
    (fields.BoolExpr, "condition"),
    (fields.PieceText, "piece"),
    (fields.Assignment, "expression, piece or list of pieces"),
    (fields.NameText, "name"),
    (fields.SourceText, "piece, or list of pieces"),
    (operations.Operation, "an operator: " + ", ".join(f"[{name}](#{name.lower()})" for name in OPERATIONS)),
    (fields.Flag, "`true` or `false`"),
    (fields.Small, "integer"),
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
