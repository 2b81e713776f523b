"""The models of a spec: what a person may write, and what stands for it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from fsm_spec.language import spec
from fsm_spec.language.expression import Const, Name, parse
from fsm_spec.language.fields import MAX_ITEMS, BoolExpr, IntExpr, Node, PieceText
from fsm_spec.language.operations import Accept, Operation
from fsm_spec.language.piece import Piece
from fsm_spec.language.spec import Spec, State, Transition

MODELS = [kind for kind in vars(spec).values() if isinstance(kind, type) and issubclass(kind, BaseModel)]


def test_expressions_are_parsed_and_written() -> None:
    """A number would be dumped as a text, or a condition as a number."""
    integer: TypeAdapter[Any] = TypeAdapter(IntExpr)
    condition: TypeAdapter[Any] = TypeAdapter(BoolExpr)
    assert (Const(3), parse("a + 1"), Name("a")) == tuple(
        integer.validate_python(v) for v in (3, "a + 1", Name("a"))
    )
    assert [3, "a + 1"] == [integer.dump_python(value) for value in (Const(3), parse("a + 1"))]
    values = [condition.validate_python(value) for value in (True, "a == 1", Const(0, boolean=True))]
    assert [True, "a == 1", False] == [condition.dump_python(value) for value in values]
    bad: list[Any] = [1.5, None, [], {}]
    for wrong in bad:
        with pytest.raises(ValidationError, match="expected an expression"):
            integer.validate_python(wrong)


def test_pieces_are_parsed_and_written() -> None:
    """A piece would be dumped as its parts."""
    piece: TypeAdapter[Any] = TypeAdapter(PieceText)
    assert (
        Piece("a", None, Name("n"))
        == piece.validate_python("a[:n]")
        == piece.validate_python(Piece("a", None, Name("n")))
    )
    assert "a[:n]" == piece.dump_python(Piece("a", None, Name("n")))
    with pytest.raises(ValidationError, match="expected a piece such as next"):
        piece.validate_python(3)


def test_operators_are_told_apart_by_their_name() -> None:
    """An operator would be read as another, or a made one refused."""
    operation: TypeAdapter[Any] = TypeAdapter(Operation)
    made = Accept(op="accept", rule="match", drafts=Piece("d"), rows="x", out=["a", "next"])
    assert made == operation.validate_python(made)
    assert made == operation.validate_python(made.model_dump())
    for wrong in ({"op": ["accept"]}, {}, 3):
        with pytest.raises(ValidationError):
            operation.validate_python(wrong)


def test_assignments_keep_their_text() -> None:
    """Whether a name is a column or a carry would be guessed before the whole spec is known."""
    data = {"from": "s", "to": "t", "set": {"a": 1, "b": "x + 1", "c": ["d[:a]", "e"]}}
    assert data["set"] == Transition.model_validate(data).set
    bad: list[Any] = [True, None, 1.5, {}]
    for wrong in bad:
        with pytest.raises(ValidationError, match="expected an expression, a piece or a list of pieces"):
            Transition.model_validate({"from": "s", "to": "t", "set": {"a": wrong}})


def test_keys_are_those_of_the_language() -> None:
    """The Python name of a key would be accepted in a file."""
    with pytest.raises(ValidationError):
        Transition.model_validate({"from_": "s", "to": "t"})


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_mapping_and_list_is_bounded(model: type[BaseModel]) -> None:
    """A file of a hundred thousand entries would be judged one by one."""
    assert issubclass(model, Node | BaseModel)
    for name, field in model.model_fields.items():
        kind = str(field.annotation)
        if kind.startswith(("dict", "list")):
            bounds = [getattr(item, "max_length", None) for item in field.metadata]
            assert any(bound is not None and bound <= MAX_ITEMS for bound in bounds), name


def test_parts_do_not_change_after_loading() -> None:
    """A table would differ from the spec that it names."""
    state = State(phase="draft")
    with pytest.raises(ValidationError):
        state.phase = "verify"
    with pytest.raises(ValidationError):
        Spec.model_validate({})


@pytest.mark.parametrize(
    ("name", "fits"), [("a", True), ("_b1", True), ("1a", False), ("a-b", False), ("a\n", False)]
)
def test_names(name: str, *, fits: bool) -> None:
    """A name that no expression can spell would be accepted."""
    state = {name: {"phase": "draft", "kv": {}, "round": True, "start": True}}
    data = {"spec": "s", "states": state, "transitions": []}
    if fits:
        assert name in Spec.model_validate(data).states
    else:
        with pytest.raises(ValidationError):
            Spec.model_validate(data)
