"""Pydantic's findings about a request as one sentence that names the parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_spec.executor.server import protocol
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.language.findings import closest, nearest

_SHOWN = 80


def refusal_of(errors: Sequence[Mapping[str, Any]], known: Sequence[str] | None = None) -> Refusal:
    """Refuse a request for the first of its faults; of a value of several forms the fault that says most.

    `known` are the names that stand where one is wrong; a request's own parameters by default.
    """
    error = max(errors, key=_telling)
    path = _path(error)
    kind, message = error["type"], str(error["msg"])
    if not path:
        return Refusal(message.removeprefix("Value error, ") if kind == "value_error" else _no_object(error))
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if kind == "extra_forbidden":
        return Refusal(
            f"parameter {name!r} is not supported{_way_out(path, known)}", name, "unsupported_parameter"
        )
    if kind == "missing":
        return Refusal(f"parameter {name!r} is missing", name, "missing_required_parameter")
    if kind == "too_long" and isinstance(error.get("input"), list):
        what = "strings" if all(isinstance(each, str) for each in error["input"]) else "entries"
        count = len(error["input"])
        return Refusal(
            f"{name}: at most {error['ctx']['max_length']} {what}; got {count}", name, "invalid_value"
        )
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return Refusal(f"{name}: {message}; got {_shown(error.get('input'))}", name, "invalid_value")


def _telling(error: Mapping[str, Any]) -> tuple[int, int]:
    """Rank faults: one that lies deeper, then one about a value of a right type, then a name that is none."""
    kind = str(error["type"])
    return len(_path(error)), 0 if kind.endswith("_type") else 1 if kind == "missing" else 2 + (
        kind == "value_error"
    )


def _no_object(error: Mapping[str, Any]) -> str:
    """Say why a body is no request."""
    if error["type"] == "missing":
        return "give a body"
    if isinstance(error.get("input"), bytes):
        return "the body does not say that it is JSON; send it with the header Content-Type: application/json"
    return f"the body must be a JSON object; got {_shown(error.get('input'))}"


def _path(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Give where a fault lies, without the names of alternatives that pydantic puts in between."""
    path = tuple(part for part in error["loc"] if part != "body")
    return tuple(
        part
        for part in path
        if isinstance(part, int) or (part.isidentifier() and part not in _alternatives()) or part is path[0]
    )


def _alternatives() -> set[str]:
    """Name the alternatives of values that have several forms."""
    return {"str", "int", "float", "bool", "NamedTool"}


def _way_out(path: Sequence[str | int], names: Sequence[str] | None) -> str:
    """Give the end of a sentence: what a client can do about a parameter that is none here."""
    word = str(path[-1])
    if names is not None:
        return nearest(word, names)
    requests = (protocol.CompletionRequest, protocol.ChatRequest)
    for model in (*requests, protocol.Message):
        if word in model.neutral:
            values = [json.dumps(value) for value in model.neutral[word]]
            return "; leave it out" + (f", or give {' or '.join(values)}" if values else "")
    known = list(dict.fromkeys(name for model in requests for name in model.model_fields))
    if word in known:
        return " here"
    if closest(word, known) is None:
        # Those of the whole request would not stand deeper in it.
        return f"; known: {', '.join(known)}" if len(path) == 1 else "; leave it out"
    return nearest(word, known)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
