"""The JSON Schema: committed, current, complete, and true of the shipped specs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fsm_spec.errors import UserError
from fsm_spec.language import schema
from fsm_spec.language.source import compose
from fsm_spec.load import shipped


def test_the_committed_schema_is_current() -> None:
    """Editors would complete keys that the loader refuses."""
    schema.check()
    assert schema.schema() == json.loads(schema.schema_path().read_text())


@pytest.mark.parametrize("name", shipped())
def test_shipped_specs_are_valid(name: str) -> None:
    """An editor would underline a good spec, or a spec would not name its schema."""
    text = shipped()[name].read_text()
    Draft202012Validator(schema.schema()).validate(compose(text, name).data)
    assert "# yaml-language-server: $schema=schema.json" == text.splitlines()[0]


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    """An editor would say nothing about a misspelt key or a key that is no name."""
    validator = Draft202012Validator(schema.schema())
    data = compose(shipped()["ar"].read_text(), "ar").data
    assert not validator.is_valid(data | {"contrct": "pending"})
    assert not validator.is_valid(data | {"columns": {"a b": {"init": 0, "max": 1}}})
    assert not validator.is_valid(data | {"contract": "pendng"})


def properties(node: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property of a schema by name."""
    if isinstance(node, dict):
        yield from node.get("properties", {}).items()
        for child in node.values():
            yield from properties(child)


def test_every_key_has_a_description() -> None:
    """Hovering over a key would show nothing."""
    Draft202012Validator.check_schema(schema.schema())
    assert [] == [name for name, part in properties(schema.schema()) if "description" not in part]


def test_defaults_are_written_as_in_a_spec() -> None:
    """A hover text would show the parser's inner form."""
    keys = schema.schema()["$defs"]["Transition"]["properties"]
    assert (True, 0) == (keys["when"]["default"], keys["keep"]["default"])


def test_drift_is_named_and_mended(tmp_path: Path) -> None:
    """A stale schema would pass, or could not be written anew."""
    path = tmp_path / "schema.json"
    with pytest.raises(UserError, match="differs from the models; write it anew"):
        schema.check(path)
    assert path == schema.write(path)
    schema.check(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="differs from the models"):
        schema.check(path)
    with pytest.raises(UserError, match="cannot be written: Is a directory; give another place"):
        schema.write(tmp_path)
