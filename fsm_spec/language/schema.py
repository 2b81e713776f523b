"""The JSON Schema of spec files, generated from the models and committed as `specs/schema.json` for editors."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from fsm_spec.errors import UserError
from fsm_spec.language.spec import Spec
from fsm_spec.writing import writing

IDENTIFIER: Final = "urn:fsm-spec:schema:spec"


def schema() -> dict[str, Any]:
    """Generate the schema: JSON Schema 2020-12, with a description on every key."""
    generated = _polished(Spec.model_json_schema(by_alias=True))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": IDENTIFIER,
        "title": "fsm-spec algorithm spec",
    }
    return head | {key: value for key, value in generated.items() if key not in head}


def _polished(value: Any) -> Any:
    """Write defaults of expressions as a person does, and refuse keys that are no names."""
    if isinstance(value, list):
        return [_polished(item) for item in value]
    if not isinstance(value, dict):
        return value
    inside = {key: _polished(item) for key, item in value.items()}
    default = inside.get("default")
    if isinstance(default, dict) and default.keys() == {"value", "boolean"}:
        inside["default"] = bool(default["value"]) if default["boolean"] else default["value"]
    if "patternProperties" in inside:
        inside["additionalProperties"] = False
    return inside


def schema_text() -> str:
    """Give the schema as it stands in the file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema_path() -> Path:
    """Give the path of the committed schema, beside the shipped specs."""
    return Path(str(resources.files("fsm_spec.specs"))) / "schema.json"


def write(path: Path | None = None) -> Path:
    """Write the schema; returns where it lies."""
    target = path or schema_path()
    with writing(target):
        target.write_text(schema_text(), encoding="utf-8")
    return target


def check(path: Path | None = None) -> None:
    """Raise UserError where the committed schema is not the one that the models give."""
    target = path or schema_path()
    found = target.read_text(encoding="utf-8") if target.is_file() else ""
    if found != schema_text():
        raise UserError(f"{target} differs from the models; write it anew with `fsm-spec schema`")
