"""What a scenario says of its outcomes: drafts accepted, lookups that find some, masks filled; never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fsm_spec.checker.chances import ACCEPT_FORMS, UNMASK, require_masks
from fsm_spec.counts import most_drafts
from fsm_spec.errors import UserError
from fsm_spec.simulator.acceptance import Acceptance, Unmasking, parse_accept, parse_unmask
from fsm_spec.simulator.acceptance_file import load_mixture, lookup_in
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.mixture import Mixture, TextProfile
from fsm_spec.simulator.outcomes import draft_sources
from fsm_spec.table import Table
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.policy import Policy
    from fsm_spec.simulator.scenario import Scenario

# Options that say how many drafts are accepted.
ACCEPTANCE: Final = ("accept", "acceptance", "mix", "concentration")


def needs(table: Table) -> Mapping[str, bool]:
    """Tell which of the options that depend on the spec have an effect on it."""
    gated = any(segment.adapter for plan in table.forwards.values() for segment in plan.segments)
    return {
        **dict.fromkeys(ACCEPTANCE, most_drafts(table, "accept") > 0),
        "lookup": most_drafts(table, "lookup") > 0,
        "unmask": most_drafts(table, "unmask") > 0,
        "adapter_rank": gated,
    }


def acceptance_of(
    scenario: Scenario, table: Table, policy: Policy | None = None
) -> Acceptance | Mixture | None:
    """Give the law of accepted drafts; raises UserError where none is given, or it has no effect or does not fit.

    `table` is of the largest size where the policy has tiers, and the sentences say so.
    """
    drafts = most_drafts(table, "accept")
    judge = _sized(table, policy)
    given = [name for name in ACCEPTANCE if getattr(scenario, name) is not None]
    if not drafts:
        if scenario.accept is not None:
            parse_accept(scenario.accept).check(drafts, table.name)
        if given:
            raise UserError(
                f"--{given[0]} would have no effect, because {table.name} judges 0 drafts; leave it out"
            )
        return None
    if scenario.accept is not None and scenario.acceptance is not None:
        raise UserError("--accept and --acceptance both say how many drafts are accepted; give one of them")
    if scenario.mix is not None and scenario.acceptance is None:
        raise UserError("--mix weighs the profiles of a file; add --acceptance FILE")
    if scenario.concentration is not None and not 0 < scenario.concentration < float("inf"):
        raise UserError(
            f"--concentration {scenario.concentration:g} is no number above 0; give 20, for example"
        )
    if scenario.acceptance is not None:
        found = load_mixture(scenario.acceptance, scenario.mix, scenario.seed)
        found.check(drafts, judge)
        return found if scenario.concentration is None else found.spread(scenario.concentration)
    if scenario.accept is None:
        raise UserError(
            f"{judge} judges {counted(drafts, 'draft')} a round, and a simulator does not know how many are"
            f" accepted; give --accept with {counted(drafts, 'rate')}, or as {ACCEPT_FORMS}; or --acceptance FILE"
        )
    acceptance = parse_accept(scenario.accept, scenario.seed)
    acceptance.check(drafts, judge)
    if scenario.concentration is None:
        return acceptance
    profile = TextProfile("all", acceptance.conditional(drafts), concentration=scenario.concentration)
    return Mixture((profile,), acceptance.describe(), scenario.seed)


def warnings_of(scenario: Scenario, table: Table) -> tuple[str, ...]:
    """Say what the options leave open: one set of rates where drafts come from several sources."""
    sources = draft_sources(table)
    if scenario.accept is None or len(sources) < 2:
        return ()
    named = [f"{' and '.join(states)} ({op})" for (_, op), states in sources.items()]
    said = (
        f"drafts come from {len(sources)} sources, {', '.join(named)}, and --accept charges all of them with the same"
        " rates; this holds only for means over the judgements of all, as `fsm-spec acceptance` records them"
    )
    return (said,)


def _sized(table: Table, policy: Policy | None) -> str:
    """Name a spec, with the size that its policy's tiers give it: that is why it judges so many drafts."""
    if policy is None or policy.tier is None:
        return table.name
    name = policy.tier.param
    return f"{table.name} with {name} = {table.params[name]}, the largest of the policy {policy.policy},"


def lookup_of(scenario: Scenario, table: Table) -> Lookup | None:
    """Give the law of lookups, which profiles may know; raises UserError where it is missing or has no effect."""
    wanted = needs(table)["lookup"]
    chance = scenario.lookup
    if chance is None and wanted and scenario.acceptance is not None:
        chance = lookup_in(scenario.acceptance, scenario.mix)
    if chance is None and wanted:
        raise UserError(
            f"{table.name} drafts by lookup, and how often one finds drafts depends on the text; give --lookup with a"
            f" chance from 0 to 1, or --acceptance with a file that was recorded from a trace"
        )
    if scenario.lookup is not None and not wanted:
        raise UserError(
            f"--lookup would have no effect, because {table.name} has no operator lookup; leave it out"
        )
    return None if chance is None else Lookup(chance, scenario.seed)


def unmasking_of(scenario: Scenario, table: Table) -> Unmasking | None:
    """Give the law of masks filled in a pass; raises UserError where it is missing, has no effect or does not fit."""
    masks = most_drafts(table, "unmask")
    if scenario.unmask is None:
        if masks:
            raise UserError(
                f"{table.name} fills masks by confidence, and how many a pass fills depends on model and text; give"
                " --unmask geometric:RATE, the chance that one more mask is filled"
            )
        return None
    if not masks:
        raise UserError(
            f"--unmask would have no effect, because {table.name} fills no masks by confidence; leave it out"
        )
    unmasking = parse_unmask(scenario.unmask, scenario.seed)
    if not unmasking.geometric:
        require_masks(len(unmasking.rates), masks, UNMASK.name)
    return unmasking
