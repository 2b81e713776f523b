"""Tiers: a parameter of a spec whose size the scheduler chooses once a round, by how many requests run.

Every size is a table of its own, with the same states, rows and columns, so that a round runs wholly under one of
them and the next one under another. What must not depend on the old size is in `rules/resizing.py`. Source of the
policy: `block_size_tiers` of SGLang's block diffusion branches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError, UserError
from fsm_spec.language.findings import nearest
from fsm_spec.table import CarryPlan, Table

if TYPE_CHECKING:
    from fsm_spec.policy import Policy


class TierStep(BaseModel):
    """Give the size for up to so many running requests; the last step has no `to` and takes the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    to: Annotated[int, Field(ge=1, strict=True)] | None = None
    value: Annotated[int, Field(strict=True)]


class Tier(BaseModel):
    """Choose the size of one parameter by the number of running requests; `check` are the checker's small steps.

    The requests counted are those at a round point when the round is planned, whoever is then preempted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    param: str
    by: Literal["running"] = "running"
    steps: Annotated[tuple[TierStep, ...], Field(min_length=1)]
    check: tuple[TierStep, ...] = ()

    @field_validator("steps", "check")
    @classmethod
    def _cover(cls, steps: tuple[TierStep, ...]) -> tuple[TierStep, ...]:
        """Hold the steps to cover every count once."""
        bounded, last = steps[:-1], steps[-1:]
        if last and last[0].to is not None:
            raise ValueError(
                f"no step takes more than {last[0].to} running requests; the last step has no `to`"
            )
        if any(step.to is None for step in bounded):
            raise ValueError(
                "a step without `to` takes all counts, so the steps behind it are never taken; put it last"
            )
        for before, after in pairwise(step.to for step in bounded):
            assert before is not None and after is not None  # noqa: PT018 - one thought: both are bounds
            if before >= after:
                raise ValueError(f"`to: {after}` stands behind `to: {before}`; the bounds go up")
        return steps

    def describe(self) -> str:
        """Say the sizes in a line."""
        if len(self.steps) == 1:
            return f"{self.param} = {self.steps[0].value}"
        sizes = [f"{step.value} up to {step.to}" for step in self.steps[:-1]]
        sizes[0] += " running"
        return f"{self.param} = {', '.join(sizes)}, {self.steps[-1].value} beyond"

    def small(self) -> Tier:
        """Give the tiers that the checker searches: its own steps where the policy has some."""
        return self.model_copy(update={"steps": self.check}) if self.check else self


@dataclass(frozen=True)
class Tiers:
    """Hold the tables that a policy may choose from, and by which counts; without tiers it is one table.

    `tables` are in the order of the steps; a step takes counts of running requests up to its place in `bounds`.
    """

    param: str | None
    tables: tuple[Table, ...]
    bounds: tuple[int, ...] = ()

    def table(self, running: int) -> Table:
        """Give the table of a round in which so many requests run."""
        return self.tables[bisect_left(self.bounds, running)]

    def size(self, table: Table) -> int | None:
        """Give the size under which a table runs; None without tiers."""
        return None if self.param is None else table.params[self.param]

    def of_size(self, size: int | None) -> Table:
        """Find the table of a size; raises KeyError where no step has it."""
        for table in self.tables:
            if self.size(table) == size:
                return table
        raise KeyError(size)

    @cached_property
    def largest(self) -> Table:
        """Give the table of the largest size: what stands for the run in headers and results."""
        return max(self.tables, key=lambda table: self.size(table) or 0)

    @cached_property
    def peak(self) -> int:
        """Give the largest peak of any size, in slots above `kv`."""
        return max(table.peak for table in self.tables)

    @cached_property
    def advance(self) -> int:
        """Give the most tokens whose KV a round of any size commits."""
        return max(table.advance for table in self.tables)

    @cached_property
    def carry(self) -> tuple[CarryPlan, ...]:
        """Give the carries, each in the largest shape that any size asks for."""
        return tuple(_widest(plans) for plans in zip(*(table.carry for table in self.tables), strict=True))

    @cached_property
    def distinct(self) -> tuple[Table, ...]:
        """List each table once."""
        return tuple({self.size(table): table for table in self.tables}.values())


def _widest(plans: Iterable[CarryPlan]) -> CarryPlan:
    first, *rest = plans
    sizes = zip(first.shape, *(plan.shape for plan in rest), strict=True)
    return replace(
        first,
        shape=tuple(
            None if None in each else max(size for size in each if size is not None) for each in sizes
        ),
    )


def tiers_of(table: Table, policy: Policy) -> Tiers:
    """Give the tables that a policy may run a spec under; steps beyond its most running requests are left out.

    `table` says which spec and which values the other parameters have.
    Raises UserError where the spec has no such tiered parameter, or a size is none that it can take.
    """
    if policy.tier is None:
        alone: Tiers = table.cached("untiered", lambda: Tiers(None, (table,)))
        return alone
    key = ("tiers", policy.tier, policy.max_running)
    tiers: Tiers = table.cached(key, lambda: _compiled(table, policy))
    # Whichever table of the family is asked, the family is the same.
    for each in tiers.tables:
        each.cache.setdefault(key, tiers)
    return tiers


def _compiled(table: Table, policy: Policy) -> Tiers:
    tier = policy.tier
    assert tier is not None
    _refuse_untiered(table, tier)
    bounds = tuple(step.to for step in tier.steps if step.to is not None and step.to < policy.max_running)
    known: dict[int, Table] = {}
    faults: list[str] = []
    for size in dict.fromkeys(step.value for step in tier.steps[: len(bounds) + 1]):
        try:
            known[size] = _resized(table, tier.param, size)
        except FsmSpecError as error:
            faults += [str(error)]
    if faults:
        raise UserError("; ".join(f"tier of {tier.param}: {fault}" for fault in faults))
    return Tiers(tier.param, tuple(known[step.value] for step in tier.steps[: len(bounds) + 1]), bounds)


def _refuse_untiered(table: Table, tier: Tier) -> None:
    spec = table.spec
    if table.contract is None:
        raise UserError(
            f"{spec.spec} is an abstract model: it has no rounds whose size a policy could choose; take a policy "
            f"without tiers"
        )
    params = [name for name, param in spec.params.items() if param.tiered]
    if tier.param in params:
        return
    if tier.param in spec.params:
        raise UserError(
            f"the policy changes {tier.param} between rounds, but {spec.spec} does not declare it `tiered: true`"
            f"{': ' + ', '.join(params) + ' is' if params else ''}"
        )
    raise UserError(
        f"the policy has tiers of {tier.param!r}, and {spec.spec} has no such parameter"
        f"{nearest(tier.param, params)}"
    )


def _resized(table: Table, param: str, size: int) -> Table:
    if table.params[param] == size:
        return table
    resized = compile_table(table.spec, {**table.params, param: size})
    # The rows are the same rows, so they come from the same lines.
    lines = [row.line for row in table.rows]
    rows = tuple(replace(row, line=line) for row, line in zip(resized.rows, lines, strict=True))
    return replace(resized, rows=rows, cache={})


def refuse_given(policy: Policy, given: Iterable[str]) -> None:
    """Raise UserError where a parameter is both given and chosen by the policy."""
    if policy.tier is not None and policy.tier.param in given:
        raise UserError(
            f"the policy {policy.policy} chooses {policy.tier.param} by its tiers; drop --set {policy.tier.param}, "
            f"or take a policy without tiers"
        )


__all__ = ["Tier", "TierStep", "Tiers", "refuse_given", "tiers_of"]
