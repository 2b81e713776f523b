"""Counterexamples as ready pytest cases: the file replays every step against the spec that it holds."""

from __future__ import annotations

import json
import re
from pprint import pformat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.checker.counterexample import Counterexample

_TEMPLATE = '''"""A counterexample of {spec}: "{name}" is refuted within {setting}.

Found by: {command}
"""

from fsm_spec.checker.recorded import replay

# To hold a mended spec to it, name the file in SPEC: the steps must then be refused, or lead elsewhere.
SPEC = None
COUNTEREXAMPLE = {record}


def test_{test}() -> None:
    """Every step is one that the table takes, and they lead to where the property breaks.

{steps}
    """
    replayed = replay(COUNTEREXAMPLE, __file__, SPEC)
    assert {count} == len(replayed.steps)
    assert {name!r} == replayed.property
    assert {last!r} == replayed.steps[-1].target
'''


def case(record: Mapping[str, Any], example: Counterexample, command: str) -> str:
    """Write a file of one test from a counterexample and its record (`recorded.record`)."""
    plain = json.loads(json.dumps(record))
    return _TEMPLATE.format(
        spec=_quoted(record["file"]),
        name=_quoted(example.name),
        setting=example.setting,
        command=_quoted(command),
        record=pformat(plain, width=110, sort_dicts=False),
        test=re.sub(r"\W+", "_", example.name.casefold(), flags=re.ASCII).strip("_") or "property",
        steps="\n".join(f"    {_quoted(line)}".rstrip() for line in example.lines()),
        count=len(example.steps),
        last=example.steps[-1].target,
    )


def _quoted(text: str) -> str:
    """Spell a text so that it can stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
