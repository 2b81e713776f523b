"""Sentences for what the models refuse: pydantic's errors in the words of a person who writes specs."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from fsm_spec.language.expression import ExpressionError
from fsm_spec.language.findings import Path, quoted
from fsm_spec.language.source import Position, Source
from fsm_spec.language.spec import Spec

_WANTED: Final = {
    "string_type": "a text",
    "int_type": "an integer",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}


def describe(value: object) -> str:
    """Name a value of a file by its kind, as a person would."""
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds: dict[type, str] = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or quoted(value)


def sentence(error: dict[str, Any], path: Path, source: Source) -> tuple[str, Position | None]:
    """Say what is wrong with a value; an expression's fault has its own place inside the text."""
    kind, value, ctx = error["type"], error["input"], error.get("ctx", {})
    if kind == "value_error":
        return str(ctx["error"]), _place(ctx["error"], path, source)
    if kind in _WANTED:
        wanted = "a name or a list of names" if error.get("either") else _WANTED[kind]
        return f"expected {wanted}, found {describe(value)}", None
    if kind in ("greater_than_equal", "less_than_equal"):
        return f"{value} is out of range; {ctx.get('ge', ctx.get('le'))} is the bound", None
    if kind in ("too_long", "too_short"):
        bound = f"at most {ctx['max_length']}" if kind == "too_long" else f"at least {ctx['min_length']}"
        return f"expected {bound} items, found {len(value)}", None
    if kind == "union_tag_not_found":
        missing = isinstance(value, dict) and "op" not in value
        return (
            'the key "op" is missing' if missing else f"expected an operator, found {describe(value)}"
        ), None
    name = path[-1] if error["loc"][-1] == "[key]" else value
    if kind == "string_too_long":
        return f"the name has {len(str(name))} characters; {ctx['max_length']} at most", None
    return f"{quoted(name)} is no name; names are ASCII letters, digits and _, and start with no digit", None


def _place(cause: Exception, path: Path, source: Source) -> Position | None:
    inner = source.inner.get(path)
    if not isinstance(cause, ExpressionError) or inner is None:
        return None
    return source.lines[path][0], inner + cause.offset


def merged(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the errors of a union's branches into the most telling one; errors hold their `path` in the file."""
    groups: dict[Path, list[dict[str, Any]]] = {}
    for error in errors:
        groups.setdefault(error["path"], []).append(error)
    deeper = {path[:length] for path in groups for length in range(len(path))}
    found = []
    for path, group in groups.items():
        keys = [error for error in group if error["loc"][-1] == "[key]"]
        kinds = [error for error in group if error["type"] in _WANTED]
        telling = [error for error in group if error["type"] not in (*_WANTED, "literal_error")]
        if keys:
            found += keys
        elif {"string_type", "list_type"} <= {error["type"] for error in kinds}:
            found.append(kinds[0] | {"either": True})
        elif telling:
            found += telling
        elif len(kinds) < len(group) or path not in deeper:
            found += group
    return found


def keys_of(path: Path, data: object) -> list[str]:
    """List the keys that the model at a path of the data knows."""
    kinds: list[Any] = [Spec]
    for part in path:
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
        data = data[part]  # type: ignore[index]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    tag = data.get("op") if isinstance(data, dict) else None
    chosen = [model for model in models if "op" not in model.model_fields or tag in _tags(model)]
    return [field.alias or name for model in chosen for name, field in model.model_fields.items()]


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(model.model_fields["op"].annotation)


def _inside(kind: Any, part: int | str) -> Iterator[Any]:  # noqa: ANN401 - types as values
    """Yield the types that may stand under a key or index of a type."""
    if get_origin(kind) in (dict, list):
        yield from _branches(get_args(kind)[-1])
    for name, field in getattr(kind, "model_fields", {}).items():
        if part == (field.alias or name):
            yield from _branches(field.annotation)


def _branches(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - types as values
    if get_origin(kind) is Annotated:
        yield from _branches(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for branch in get_args(kind):
            yield from _branches(branch)
    else:
        yield kind
