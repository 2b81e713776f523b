"""Files of acceptance profiles: what `fsm-spec acceptance` records from traces, or a person writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fsm_spec.errors import UserError
from fsm_spec.language.findings import nearest, path_text
from fsm_spec.simulator.mixture import Mixture, TextProfile

Rates = tuple[Annotated[float, Field(ge=0, le=1)], ...]


class ProfileEntry(BaseModel):
    """Describe one kind of text: a task, a temperature, or both."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1, pattern=r"^[^,=\s]+$", description="what --mix calls it")
    rates: Rates = Field(
        min_length=1, description="chance of each draft given that all before it were accepted"
    )
    after_rejection: Rates = Field(
        default=(), description="the same where the judgement before rejected a draft"
    )
    at_start: Rates = Field(default=(), description="the same where nothing was judged yet")
    weight: float = Field(default=1.0, gt=0, description="share of the requests, beside the other profiles'")
    concentration: float | None = Field(
        default=None,
        gt=0,
        description="requests differ: rates are beta-distributed, larger is closer together",
    )
    requests: int | None = Field(default=None, ge=0, description="requests that it was recorded from")
    judgements: int | None = Field(default=None, ge=0, description="rounds that it was recorded from")

    judged: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="judgements that each of `rates` rests on"
    )
    lookup: float | None = Field(default=None, ge=0, le=1, description="chance that a lookup finds drafts")
    lookups: int | None = Field(default=None, ge=0, description="lookups that it was recorded from")

    def profile(self) -> TextProfile:
        """Give the profile."""
        return TextProfile(
            self.name, self.rates, self.after_rejection, self.at_start, self.weight, self.concentration
        )


class AcceptanceFile(BaseModel):
    """Hold the profiles of one spec under the same parameters, and where they come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str = Field(min_length=1, description="where the numbers come from")
    spec: str = Field(default="", description="name of the spec that they were recorded from")
    params: dict[str, int] = Field(default_factory=dict, description="its parameters")
    profiles: tuple[ProfileEntry, ...] = Field(min_length=1)


def read_acceptance(path: str) -> AcceptanceFile:
    """Read a file; raises UserError for one that cannot be read, and for each field that is wrong."""
    try:
        text: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "no YAML"
        raise UserError(f"{path}: cannot be read ({reason}); give a file of acceptance profiles") from error
    if not isinstance(text, dict):
        raise UserError(f"{path}: holds no mapping; give a file of acceptance profiles")
    try:
        found = AcceptanceFile.model_validate(text)
    except ValidationError as error:
        lines = [f"{path}: {path_text(each['loc'])}: {each['msg']}; mend it" for each in error.errors()]
        raise UserError("\n".join(lines)) from error
    names = [entry.name for entry in found.profiles]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: the profile {twice} stands there twice; give each a name of its own")
    return found


def load_mixture(path: str, mix: str | None, seed: int) -> Mixture:
    """Read the profiles of a file; `mix` (NAME=WEIGHT,...) picks some and weighs them anew; raises UserError."""
    found = read_acceptance(path)
    profiles = tuple(entry.profile() for entry in found.profiles)
    if mix is not None:
        profiles = mixed(profiles, mix, path)
    return Mixture(profiles, Path(path).name, seed)


def lookup_in(path: str, mix: str | None) -> float | None:
    """Give the chance that a lookup finds drafts, the mean over the profiles taken; None where one has none."""
    found = read_acceptance(path)
    profiles: Sequence[TextProfile] = [entry.profile() for entry in found.profiles]
    weights = {each.name: each.weight for each in (mixed(profiles, mix, path) if mix else profiles)}
    chances = [(entry.lookup, weights[entry.name]) for entry in found.profiles if entry.name in weights]
    if any(chance is None for chance, _ in chances):
        return None
    return sum((chance or 0.0) * weight for chance, weight in chances) / sum(weights.values())


def mixed(profiles: Sequence[TextProfile], mix: str, path: str) -> tuple[TextProfile, ...]:
    """Pick and weigh profiles by `NAME=WEIGHT,...`; raises UserError for unknown names and bad weights."""
    known = {profile.name: profile for profile in profiles}
    chosen: dict[str, TextProfile] = {}
    for word in mix.split(","):
        name, equals, number = (part.strip() for part in word.partition("="))
        if name not in known:
            raise UserError(f'--mix "{mix}": {path} has no profile "{name}"{nearest(name, known)}')
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf") or name in chosen:
            raise UserError(
                f'--mix "{mix}": {word.strip()} is no share above 0 of a profile named once; write code=2,chat=1'
            )
        old = known[name]
        chosen[name] = TextProfile(
            name, old.rates, old.after_rejection, old.at_start, weight, old.concentration
        )
    return tuple(chosen.values())
