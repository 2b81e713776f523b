"""What a plan was asked, in words: the settings of its scenarios, then load, limits and search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fsm_spec.errors import FsmSpecError
from fsm_spec.load import load
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario

if TYPE_CHECKING:
    from fsm_spec.simulator.plan_command import Asked

Place = tuple[str, str, int]  # a spec, an accelerator, and how many of it make a replica
# Settings of a scenario that a plan varies, and says itself.
VARIED = ("arrivals", "requests", "seed")


def plan_settings(asked: Asked, scenarios: Iterable[Scenario]) -> tuple[dict[str, str], list[str]]:
    """Give what was asked, and warnings; what differs between specs or accelerators stands with their names."""
    by_place: dict[Place, Scenario] = {}
    for scenario in scenarios:
        by_place.setdefault(
            (load(scenario.spec).spec.spec, scenario.hardware, scenario.tensor_parallel), scenario
        )
    found = {}
    warnings: dict[str, None] = {}
    for place, scenario in by_place.items():
        try:
            prepared = prepare(scenario.model_copy(update={"requests": 1}))
        except FsmSpecError:
            continue  # its sentence stands with the results
        found[place] = prepared.settings()
        warnings |= {f"{prepared.table.name}: {each}": None for each in prepared.warnings}
    varied = [text.partition("=")[0].strip() for text in asked.vary]
    names = dict.fromkeys(name for settings in found.values() for name in settings if name not in VARIED)
    told = {"goal": asked.goal, "spec": ", ".join(load(spec).spec.spec for spec in asked.specs)}
    told |= {name: _joined(name, found, varied) for name in names}
    return {name: value for name, value in (told | _search(asked)).items() if value}, list(warnings)


def _joined(name: str, found: dict[tuple[str, str, int], dict[str, str]], varied: Sequence[str]) -> str:
    """Write the value that all share, or each value with where it holds."""
    values = {place: settings.get(name, "") for place, settings in found.items()}
    if name == "parameters":
        values = {
            place: " ".join(word for word in value.split() if word.partition("=")[0] not in varied)
            for place, value in values.items()
        }
    if len(set(values.values())) == 1 or name == "hardware":
        return ", ".join(dict.fromkeys(values.values()))
    parts: dict[str, dict[str, None]] = {}
    for place, value in values.items():
        parts.setdefault(value, {})[_where(place, values)] = None
    return ", ".join(f"{value} ({', '.join(where)})" for value, where in parts.items() if value)


def _where(place: Place, values: dict[Place, str]) -> str:
    """Name a place by its spec alone, or by its accelerators alone, where that tells the values apart."""
    by_spec = {(each[0], value) for each, value in values.items()}
    by_machine = {(each[1:], value) for each, value in values.items()}
    spec, machine, parallel = place
    machines = f"{machine} x {parallel}" if parallel > 1 else machine
    if len(by_spec) == len({each[0] for each in values}):
        return spec
    if len(by_machine) == len({each[1:] for each in values}):
        return machines
    return f"{spec} on {machines}"


def _search(asked: Asked) -> dict[str, str]:
    """Say the load, the limits, and how the search goes on."""
    requests = asked.base.get("requests")
    by_rate = asked.goal in ("max-rate", "min-gpus")
    told = {
        "varied": "  ".join(asked.vary),
        "arrivals": asked.arrivals if by_rate else f"closed:{asked.users}",
        "rate": f"{asked.rate:g} requests/s" if asked.rate is not None else "",
        "requests": str(requests) if requests else "as many as show the load" if by_rate else "4 a user",
        "limits": ", ".join(asked.slos),
        "price a GPU hour": f"{asked.price:g}" if asked.price is not None else "",
        "seed": str(asked.base["seed"]),
    }
    return told | ({"seeds": str(asked.seeds), "precision": f"{asked.precision:g}"} if by_rate else {})
