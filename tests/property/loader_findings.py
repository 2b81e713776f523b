"""What the loader says of a text, in lines that tests compare."""

from __future__ import annotations

from fsm_spec.language.findings import SpecFindings
from fsm_spec.load import loads


def findings(text: str) -> list[str]:
    """List what the loader says of a text, each with its path; nothing where it loads."""
    try:
        loads(text)
    except SpecFindings as error:
        return [f"{each.path}: {each.message}" for each in error.findings]
    return []
