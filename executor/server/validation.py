"""Pydantic's findings about a request as one sentence that names the parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_spec.executor.server import protocol
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.language.findings import nearest

_SHOWN = 80


def refusal_of(errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """Refuse a request for the first of its faults; of a value of several forms the fault that reached deepest."""
    error = max(errors, key=lambda each: (len(_path(each)), each["type"] == "extra_forbidden"))
    path = _path(error)
    kind, message = error["type"], str(error["msg"])
    if not path:
        what = "the body is read as no JSON object; send one, with the header Content-Type: application/json"
        if kind == "missing":
            what = "give a body"
        return Refusal(message.removeprefix("Value error, ") if kind == "value_error" else what)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if kind == "extra_forbidden":
        return Refusal(
            f"parameter {name!r} is not supported{_way_out(str(path[-1]))}", name, "unsupported_parameter"
        )
    if kind == "missing":
        return Refusal(f"parameter {name!r} is missing", name, "missing_required_parameter")
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return Refusal(f"{name}: {message}; got {_shown(error.get('input'))}", name, "invalid_value")


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


def _way_out(word: str) -> str:
    """Give the end of a sentence: what a client can do about a parameter that is none here."""
    requests = (protocol.CompletionRequest, protocol.ChatRequest)
    for model in (*requests, protocol.Message):
        if word in model.neutral:
            values = [json.dumps(value) for value in model.neutral[word]]
            return "; leave it out" + (f", or give {' or '.join(values)}" if values else "")
    known = list(dict.fromkeys(name for model in requests for name in model.model_fields))
    return " here" if word in known else nearest(word, known)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
