"""The reference pages about specs: what the loader finds in faulty ones, and what the shipped ones claim."""

from __future__ import annotations

import re
from typing import Final

import yaml
from reference_page import PROJECT, page, table

from fsm_spec.language import expression, operations, spec
from fsm_spec.language.findings import SpecFindings
from fsm_spec.language.scope import Scope
from fsm_spec.load import load, loads, shipped
from fsm_spec.rules.resizing import live_carries

FAULTS: Final = "docs/reference/faults.yaml"


def findings() -> str:
    """Plant every slip of faults.yaml and write what is found."""
    parts = [
        "What the loader finds, shown on slips of the pen in the shipped specs and in those of docs/examples.",
        "Every finding is one line, `file:line:column: path: what is wrong; the way out`; one run gives all of a file.",
        "A word that is nearly right is read as the right one, so that the rest of the file is still judged.\n",
    ]
    for section in yaml.safe_load((PROJECT / FAULTS).read_text(encoding="utf-8")):
        parts.append(f"## {section['title']}\n")
        parts += [f"{section['about'].strip()}\n"] if "about" in section else []
        parts += [_finding(fault) for fault in section["faults"]]
    return page("Findings", *parts)


def _finding(fault: dict[str, str]) -> str:
    name, old, new = fault["in"], fault["old"], fault["new"]
    example = PROJECT / "docs" / "examples" / f"{name}.yaml"
    text = (example if example.exists() else PROJECT / "specs" / f"{name}.yaml").read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(
            f"{FAULTS}: {old!r} stands {text.count(old)} times in {name}; it must stand there once"
        )
    try:
        loads(text.replace(old, new), name)
    except SpecFindings as found:
        lines = [str(finding) for finding in found.findings]
    else:
        raise SystemExit(f"{FAULTS}: {old!r} -> {new!r} in {name} brings out no finding")
    edit = f"`{old.strip()}` becomes `{new.strip()}`" if new else f"without `{old.strip()}`"
    told = fault.get("say", edit)
    return f"In `{name}`, {told}:\n\n```text\n" + "\n".join(lines) + "\n```\n"


def specs() -> str:
    """List the shipped specs with what they claim, and what of their output is identical or equal in law."""
    known = [load(path).spec for _, path in sorted(shipped().items())]
    claims = [
        [f"`{each.spec}`", _claim(each), _judges(each), each.lossless.why, each.source]
        for each in known
        if each.lossless is not None
    ]
    about = [f"## {each.spec}\n\n{_wrapped(each.about)}\n\n{_params(each)}" for each in known]
    return page(
        "Shipped specs",
        "Written from the specs themselves: what each claims and why, where it comes from, and how it judges drafts.",
        "[The language](../language.md#claims) says what a claim promises, and how promises are tested.\n",
        table(["spec", "claim", "drafts judged by", "because", "source"], claims),
        "## What is identical, and what is equal in law\n",
        "Compared with plain decoding (`ar`) of the same request with the same seed, where logits do not depend on the",
        "batch (float32 or wider). The last columns compare a request with itself: in another batch, and preempted",
        "half-way. It follows from how drafts are judged, and from what a round takes over from the one before:",
        "what a preemption drops may be proposed anew, and other proposals give other tokens of the same law.",
        "Where a policy chooses sizes by load (`tier`), proposals depend on the load as well.\n",
        table(
            ["spec", "temperature 0", "temperature above 0", "in a batch", "after preemption"],
            [[f"`{each.spec}`", *promises(each)] for each in known],
        ),
        *about,
    )


def _claim(each: spec.Spec) -> str:
    assert each.lossless is not None
    return "none" if each.lossless.claim == "no" else each.lossless.claim


def _judges(each: spec.Spec) -> str:
    rules = dict.fromkeys(
        f"{'walk by ' if isinstance(op, operations.Walk) else ''}{op.rule}"
        for forward in each.forwards.values()
        for op in forward.ops
        if isinstance(op, (operations.Accept, operations.Walk))
    )
    return ", ".join(rules) or "nothing"


def _wrapped(text: str) -> str:
    """Write one line a sentence."""
    return re.sub(r"(?<=[.]) +(?=[A-Z])", "\n", " ".join(text.split()))


def _params(each: spec.Spec) -> str:
    rows = [
        [f"`{name}`", f"{each.range[0]} to {each.range[1]}", str(each.default), each.about]
        for name, each in each.params.items()
    ]
    return table(["parameter", "range", "default", "meaning"], rows) if rows else "No parameters.\n"


def promises(each: spec.Spec) -> list[str]:
    """Say what of a spec's output is identical: at temperature 0, above it, in a batch, after preemption."""
    claim = each.lossless.claim if each.lossless is not None else "no"
    rules = {
        op.rule
        for forward in each.forwards.values()
        for op in forward.ops
        if isinstance(op, (operations.Accept, operations.Walk))
    }
    # Without a judge a block that a preemption drops is filled again, by the same draws.
    after = "may differ" if rules and crosses(each) else "identical"
    if claim == "no":
        return ["no promise", "no promise", "identical", after]
    if claim == "greedy":
        # Above temperature 0 a prefill draws its token, which the rounds behind it would not have.
        return [
            "identical",
            "those of temperature 0, behind a drawn first one",
            "identical",
            "at temperature 0",
        ]
    if rules <= {"match"}:
        return ["identical"] * 4
    return ["identical", "the same law", "identical", "the same law" if crosses(each) else "identical"]


def crosses(each: spec.Spec) -> bool:
    """Tell whether a round depends on more than the text: its state, a column or a carry of the round before."""
    rounds = [name for name, state in each.states.items() if state.round]
    live = {name for start in rounds for name in live_carries(Scope(each), start)} & set(each.carry)
    moved = [
        value
        for transition in each.transitions
        if transition.to in rounds
        for name, value in transition.set.items()
        if name in each.columns
        and not set(expression.names(expression.parse(str(value)))) <= set(each.params)
    ]
    return len(rounds) > 1 or bool(live) or bool(moved)
