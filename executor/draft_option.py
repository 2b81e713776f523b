"""The option that names draft models, as `generate` and `serve` take it; `models/load_drafters.py` loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsm_spec.errors import UserError
from fsm_spec.table import Table

# Self-speculation: so many of the target's first layers in place of a checkpoint.
LAYERS = "layers:"
# Untrained weights, which show that a spec runs and draft badly.
RANDOM = "random"
_LANGUAGE = "language_model"


def draft_places(texts: Sequence[str]) -> dict[str, str]:
    """Read `NAME=FOLDER`, each name once; raises UserError."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not (name and equals and place):
            raise UserError(f"--draft {text} is unknown; write NAME=FOLDER, NAME={LAYERS}N or NAME={RANDOM}")
        given[name] = place
    return given


def require_drafts(table: Table, given: Mapping[str, str]) -> None:
    """Raise UserError for a draft model that is unknown, missing, or of another kind; reads no file."""
    for name, place in given.items():
        if name not in table.models:
            known = ", ".join(table.models) or "none"
            raise UserError(f"--draft {name}: {table.name} has no draft model of that name; it has {known}")
        if place.startswith(LAYERS):
            _require_layers(name, place, table.models[name].kind)
    for name, plan in table.models.items():
        if name not in given and plan.kind != "token_heads":
            layers = f", {name}={LAYERS}N (the target's first N layers) or " if plan.kind == _LANGUAGE else ""
            raise UserError(
                f"{table.name} drafts with a {plan.kind.replace('_', ' ')} called {name}; give --draft"
                f" {name}=FOLDER{layers or ' or '}{name}={RANDOM} (untrained weights)"
            )


def _require_layers(name: str, place: str, kind: str) -> None:
    count = place.removeprefix(LAYERS)
    if kind != _LANGUAGE:
        raise UserError(
            f"--draft {name}={place}: layers of the target are a language model, no {kind}; give a folder"
        )
    if not (count.isascii() and count.isdigit()):
        raise UserError(
            f"--draft {name}={place}: {count!r} is no number of layers; write {LAYERS}4, for example"
        )
