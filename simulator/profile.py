"""A calibration profile: numbers measured on one machine that replace those of the catalogue and of the host."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fsm_spec.errors import UserError
from fsm_spec.language.findings import nearest
from fsm_spec.simulator.cost import Host
from fsm_spec.simulator.hardware import Hardware

HOST_FIELDS = tuple(field.name for field in fields(Host))
FIXED = frozenset({"name", "title", "sources"})


@dataclass(frozen=True)
class Profile:
    """Hold the machine that a run is priced for."""

    hardware: Hardware
    host: Host


def load_profile(path: str, hardware: Hardware, host: Host) -> Profile:
    """Read `{hardware: {field: value}, host: {field: value}, source: text}` over an accelerator and a host.

    Raises UserError for a file that cannot be read, an unknown field or a value out of range.
    """
    try:
        read: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "no YAML"
        raise UserError(f"{path}: cannot be read ({reason}); give a calibration profile") from error
    if (
        not isinstance(read, dict)
        or not read.keys() <= {"hardware", "host", "source"}
        or not read.get("source")
    ):
        raise UserError(
            f"{path}: needs the key source, which says where its numbers come from, and hardware, host or both"
        )
    mine, its_host = (read.get(part) or {} for part in ("hardware", "host"))
    known = {"hardware": set(Hardware.model_fields) - FIXED, "host": set(HOST_FIELDS)}
    for part, given in (("hardware", mine), ("host", its_host)):
        for name in given if isinstance(given, dict) else ("",):
            if name not in known[part]:
                raise UserError(
                    f"{path}: {part}: {name!r} is no number of it{nearest(str(name), known[part])}"
                )
    sources = {**hardware.sources, **dict.fromkeys(mine, str(read["source"]))}
    try:
        changed = Hardware.model_validate({**hardware.model_dump(), **mine, "sources": sources})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: hardware: {place}: {first['msg']}; mend that number") from error
    bad = [name for name, value in its_host.items() if not isinstance(value, int) or value < 0]
    if bad:
        raise UserError(f"{path}: host: {bad[0]} is no number of nanoseconds of at least 0; mend it")
    return Profile(changed, replace(host, **its_host))
