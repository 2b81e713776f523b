"""Rules over a whole spec, for all parameters."""

from __future__ import annotations

from fsm_spec.findings import Path
from fsm_spec.spec import Spec


def violations(spec: Spec, doubt: set[str] | None = None) -> list[tuple[Path, str]]:
    """List what is wrong."""
    return []
