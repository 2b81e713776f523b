"""Drafts of a spec: validate data against the models, say what is wrong in plain sentences, and mend or leave out.

A misspelt key, word or operator with a near right word is read as that word; any other faulty part is left out, with
what cannot stand without it. Thus one run finds the faults of the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fsm_spec.expression import ExpressionError
from fsm_spec.findings import MAX_FINDINGS, Path, closest, nearest, quoted
from fsm_spec.source import Position, Source
from fsm_spec.spec import Spec

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPECTED: Final = re.compile(r"'([^']*)'")
_WANTED: Final = {
    "string_type": "a text",
    "int_type": "an integer",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
Fault = tuple[Path, str, Position | None]


def words(value: Any) -> Iterator[str]:
    """Yield every word inside plain data, keys included."""
    if isinstance(value, str):
        yield from _WORD.findall(value)
    elif isinstance(value, list):
        for item in value:
            yield from words(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from words(key)
            yield from words(item)


class Draft:
    """Hold a spec's data while it is validated; `faults` collects findings, `doubt` the words left out."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.doubt: set[str] = {word for text in source.dropped for word in words(text)}
        self.dropped: set[Path] = set()
        self.renamed: dict[Path, str] = {}
        self.replaced: dict[Path, Any] = {}
        self.kept: dict[Path, list[int]] = {}
        for path in source.broken:
            self._drop(path)

    def validate(self) -> Spec | None:
        """Validate, mending between attempts; None where nothing of the file can stand."""
        while () not in self.dropped:
            self.kept = {}
            try:
                return Spec.model_validate(self._view(self.source.data, ()))
            except ValidationError as error:
                for item in _alternatives(error.errors(include_url=False), self):
                    self._take(item)
        return None

    def original(self, path: Path) -> Path:
        """Translate a path of the mended data to the file's."""
        found: Path = ()
        back = {(key[:-1], name): key[-1] for key, name in self.renamed.items()}
        for part in path:
            kept = self.kept.get(found)
            if isinstance(part, int):
                found = (*found, kept[part] if kept is not None and part < len(kept) else part)
            else:
                found = (*found, back.get((found, part), part))
        return found

    def _view(self, value: Any, path: Path) -> Any:
        """Give the data without what is dropped, renamed and replaced."""
        if path in self.replaced:
            return self.replaced[path]
        if isinstance(value, dict):
            inside = {key: (*path, key) for key in value}
            return {
                self.renamed.get(place, key): self._view(value[key], place)
                for key, place in inside.items()
                if place not in self.dropped
            }
        if isinstance(value, list):
            self.kept[path] = [index for index in range(len(value)) if (*path, index) not in self.dropped]
            return [self._view(value[index], (*path, index)) for index in self.kept[path]]
        return value

    def at(self, path: Path) -> Any:
        """Give the file's value at a path of the file; None where there is none."""
        value: Any = self.source.data
        for part in path:
            if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
                value = value[part]
            else:
                return None
        return value

    def locate(self, loc: tuple[int | str, ...]) -> Path:
        """Translate pydantic's location to a path of the file: tags of union branches fall away."""
        value, mended = self._view(self.source.data, ()), ()
        for part in loc:
            if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
                value = value[part]
            else:
                continue
            mended = (*mended, part)
        return self.original(mended)

    def _drop(self, path: Path) -> None:
        """Leave out a part: its key, or the list item that is a mapping of its own."""
        while path and isinstance(path[-1], int) and not isinstance(self.at(path), dict):
            path = path[:-1]
        self.doubt.update(words(self.at(path)), words([part for part in path[-1:] if isinstance(part, str)]))
        self.dropped.add(path)

    def _take(self, error: dict[str, Any]) -> None:
        """Report one error and mend its cause."""
        path: Path = error["path"]
        handler = getattr(self, f"_take_{error['type']}", None)
        if handler is not None:
            handler(path, error)
        else:
            self._report(path, *_sentence(error, self, path))
            self._drop(path)

    def _report(self, path: Path, message: str, place: Position | None = None) -> None:
        if len(self.faults) < MAX_FINDINGS:
            self.faults.append((path, message, place))

    def _take_missing(self, path: Path, error: dict[str, Any]) -> None:
        key = error["loc"][-1]
        gone = (*path, key) in self.dropped
        if isinstance(key, int):
            if not gone:
                self._report(path, f"expected {key + 1} or more items, found {len(self.at(path))}")
        elif not gone:
            self._report(path, f'the key "{key}" is missing')
        if path == () and key == "spec":
            self.renamed, self.source.data["spec"] = self.renamed, "unnamed"
            self.dropped.discard(("spec",))
        else:
            self._drop(path)

    def _take_extra_forbidden(self, path: Path, error: dict[str, Any]) -> None:
        key = str(path[-1])
        holder = self.at(path[:-1])
        keys = _keys(path[:-1], self)
        self._report(path, f"unknown key {quoted(key)}{nearest(key, keys)}", self.source.keys.get(path))
        free = [name for name in keys if name not in holder and (*path[:-1], name) not in self.dropped]
        match = closest(key, free)
        taken = {name for place, name in self.renamed.items() if place[:-1] == path[:-1]}
        if match is not None and match not in taken:
            self.renamed[path] = match
        else:
            self._drop(path)

    def _take_literal_error(self, path: Path, error: dict[str, Any]) -> None:
        known = _EXPECTED.findall(error["ctx"]["expected"])
        self._word(path, error["input"], known, "the word")

    def _take_union_tag_invalid(self, path: Path, error: dict[str, Any]) -> None:
        known = _EXPECTED.findall(error["ctx"]["expected_tags"])
        self._word((*path, "op"), error["ctx"]["tag"], known, "the operator")

    def _word(self, path: Path, value: Any, known: list[str], what: str) -> None:
        if not isinstance(value, str):
            self._report(path, f"expected one of {', '.join(known)}, found {describe(value)}")
            self._drop(path)
            return
        self._report(path, f"{what} {quoted(value)} is not known here{nearest(value, known)}")
        match = closest(value, known)
        if match is not None:
            self.replaced[path] = match
        elif what == "the operator":
            self._drop(path[:-1])
        else:
            self._drop(path)


def describe(value: Any) -> str:
    """Name a value of a file by its kind, as a person would."""
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or quoted(value)


def _sentence(error: dict[str, Any], draft: Draft, path: Path) -> tuple[str, Position | None]:
    """Say what is wrong with a value, and where inside its text."""
    kind, value, ctx = error["type"], error["input"], error.get("ctx", {})
    if error["loc"][-1:] == ("[key]",):
        value = path[-1]
    if kind in _WANTED:
        wanted = "a name or a list of names" if error.get("either") else _WANTED[kind]
        return f"expected {wanted}, found {describe(value)}", None
    if kind == "union_tag_not_found":
        missing = isinstance(value, dict) and "op" not in value
        return (
            'the key "op" is missing' if missing else f"expected an operator, found {describe(value)}"
        ), None
    if kind == "string_pattern_mismatch":
        return f"{quoted(value)} is no name; names are letters, digits and _, and start with no digit", None
    if kind == "string_too_long":
        return f"the name has {len(value)} characters; {ctx['max_length']} at most", None
    if kind in ("greater_than_equal", "less_than_equal"):
        return f"{value} is out of range; {ctx.get('ge', ctx.get('le'))} is the bound", None
    if kind in ("too_long", "too_short"):
        bound = f"{ctx['max_length']} at most" if kind == "too_long" else f"at least {ctx['min_length']}"
        return f"there are {len(value)} items here; {bound}", None
    cause = ctx.get("error")
    inner = draft.source.inner.get(path)
    place = (
        (draft.source.lines[path][0], inner + cause.offset)
        if isinstance(cause, ExpressionError) and inner
        else None
    )
    return str(cause or error["msg"]), place


def _alternatives(errors: list[Any], draft: Draft) -> list[dict[str, Any]]:
    """Place the errors, and merge those of the branches of one union into the most telling."""
    placed = [dict(error) | {"path": draft.locate(error["loc"])} for error in errors]
    at: dict[Path, list[dict[str, Any]]] = {}
    for error in placed:
        at.setdefault(error["path"], []).append(error)
    deeper = {path[:length] for path in at for length in range(len(path))}
    merged = []
    for path, group in at.items():
        kinds = [error for error in group if error["type"] in _WANTED]
        telling = [error for error in group if error["type"] not in (*_WANTED, "literal_error")]
        if {"string_type", "list_type"} <= {error["type"] for error in kinds}:
            merged.append(kinds[0] | {"either": True})
        elif telling and len(telling) < len(group):
            merged += telling
        elif not (kinds and len(kinds) == len(group) and path in deeper):
            merged += group
    return merged


def _keys(path: Path, draft: Draft) -> list[str]:
    """List the keys that the model at a path of the file knows."""
    kinds: list[Any] = [Spec]
    renamed = [draft.renamed.get(path[: end + 1], part) for end, part in enumerate(path)]
    for part in renamed:
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    tag = (draft.replaced.get((*path, "op")) or (draft.at(path) or {}).get("op")) if models else None
    chosen = [
        model
        for model in models
        if "op" not in model.model_fields or tag in get_args(model.model_fields["op"].annotation)
    ]
    return [field.alias or name for model in chosen for name, field in model.model_fields.items()]


def _inside(kind: Any, part: int | str) -> Iterator[Any]:
    """Yield the types that may stand under a key or index of a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            if part == (field.alias or name):
                yield from _branches(field.annotation)
    elif get_origin(kind) is dict:
        yield from _branches(get_args(kind)[1])
    elif get_origin(kind) is list:
        yield from _branches(get_args(kind)[0])


def _branches(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from _branches(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for branch in get_args(kind):
            yield from _branches(branch)
    elif get_origin(kind) is not Literal:
        yield kind
