"""What the values of a spec file are: expressions, pieces, names and numbers, parsed while the file is read."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from fsm_spec.language import expression
from fsm_spec.language.expression import Expr
from fsm_spec.language.piece import Piece, parse_piece

NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
# Bounds of a file that a person could mean; beyond them a loader would only be slow or blind.
MAX_ITEMS: Final = 200
MAX_VALUE: Final = 2**20


def _parse_integer(value: Any) -> Expr:
    return value if isinstance(value, Expr) else expression.parse(_scalar(value), "int")


def _parse_condition(value: Any) -> Expr:
    return value if isinstance(value, Expr) else expression.parse(_scalar(value), "bool")


def _scalar(value: Any) -> str | int | bool:
    if isinstance(value, (str, int)):
        return value
    raise ValueError(f"expected an expression, found {_describe(value)}")


def _parse_piece(value: Any) -> Piece:
    if isinstance(value, Piece):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected a piece such as next or 'drafts[:a]', found {_describe(value)}")  # noqa: TRY004 - pydantic catches ValueError
    return parse_piece(value)


def _parse_sources(value: Any) -> Piece | list[Piece]:
    return [_parse_piece(each) for each in value] if isinstance(value, list) else _parse_piece(value)


def _write_sources(value: Piece | list[Piece]) -> str | list[str]:
    return list(map(str, value)) if isinstance(value, list) else str(value)


def _parse_assignment(value: Any) -> Any:
    """Keep the text: whether a name is a column or a carry is known only with the whole spec."""
    if isinstance(value, bool) or not isinstance(value, (str, int, list)):
        raise ValueError(f"expected an expression, a piece or a list of pieces, found {_describe(value)}")  # noqa: TRY004 - pydantic catches ValueError
    return value


def _describe(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", float: "a number with a fraction", type(None): "nothing"}
    return kinds.get(type(value), repr(value))


def _write(expr: Expr) -> str | int | bool:
    """Write constants as YAML's own numbers and truth values, all else as text."""
    if isinstance(expr, expression.Const):
        return bool(expr.value) if expr.boolean else expr.value
    return expression.to_text(expr)


_TEXT_OR_INT: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
IntExpr = Annotated[
    Expr, PlainValidator(_parse_integer), PlainSerializer(_write), WithJsonSchema(_TEXT_OR_INT)
]
BoolExpr = Annotated[
    Expr,
    PlainValidator(_parse_condition),
    PlainSerializer(_write),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string"}]}),
]
PieceText = Annotated[
    Piece, PlainValidator(_parse_piece), PlainSerializer(str), WithJsonSchema({"type": "string"})
]
SourceText = Annotated[
    Piece | list[Piece],
    PlainValidator(_parse_sources),
    PlainSerializer(_write_sources),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Assignment = Annotated[
    str | int | list[str],
    PlainValidator(_parse_assignment),
    WithJsonSchema(
        {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    ),
]
NameText = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Small = Annotated[int, Field(ge=-MAX_VALUE, le=MAX_VALUE, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class Node(BaseModel):
    """Be the base of all parts of a spec: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
