"""The shipped catalogue: accelerators in `hardware.yaml`, model shapes in `models/*.json`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from fsm_spec.errors import UserError


def folder() -> Traversable:
    """Return the folder of the shipped catalogue, also inside an installed wheel."""
    return files(__name__)


def normalised(name: str) -> str:
    """Return `name` in lower case without `-`, `_`, `.` and blanks, as names are compared."""
    return re.sub(r"[-_.\s]", "", name.casefold())


def find(name: str, entries: Mapping[str, Iterable[str]], kind: str, way_out: str = "") -> str:
    """Return the key of `entries` that `name` means, by the key itself or one of its aliases.

    Raises UserError with the nearest right names, or all of them if none is near; `way_out` ends the
    sentence.
    """
    spelling = {normalised(word): key for key, aliases in entries.items() for word in (key, *aliases)}
    wanted = normalised(name.rsplit("/", maxsplit=1)[-1])
    if wanted in spelling:
        return spelling[wanted]
    close = difflib.get_close_matches(wanted, spelling, n=3, cutoff=0.6)
    nearest = list(dict.fromkeys(spelling[word] for word in close))
    offer = f"did you mean {' or '.join(nearest)}?" if nearest else f"choose one of {', '.join(entries)}"
    raise UserError(f'unknown {kind} "{name}"; {offer}{way_out}')
