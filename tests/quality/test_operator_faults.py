"""Faults planted in the operators' source must change the exact output law, or use a random number twice.

`operator_faults.yaml` lists them. A fault replaces one piece of a reading's text; the module is run from memory, and
the law of a round is enumerated over a toy target.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
import yaml

from fsm_spec.kernels.choose import Key
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes, outcome_law
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law_plain
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import Tree

VOCABULARY, DRAFTS, SEED = 3, 2, 5
EXACT, VISIBLE = 1e-12, 1e-4
PARAMS = [SamplingParams(1.0), SamplingParams(0.7, 2), SamplingParams(1.4, 0, 0.8), SamplingParams()]
ONCE = frozenset(Purpose)
# Tokens, parents and depths of the tree that is walked; two children of the root carry the same token.
TOKENS, PARENTS, DEPTHS = [0, 1, 1, 2, 0, 2], [-1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 2, 2]
MODULES = ("acceptance", "acceptance_plain", "sampling", "walk", "walk_plain")
Tokens = tuple[int, ...]
Modules = dict[str, ModuleType]


class Fault(NamedTuple):
    """Describe a fault: what it does, where it stands, which scenario sees it, and the pitfall it stands for."""

    about: str
    module: str
    scenario: str
    old: str
    new: str
    pitfall: str = ""


FAULTS = [
    Fault(**entry)
    for entry in yaml.safe_load((Path(__file__).parent / "operator_faults.yaml").read_text(encoding="utf-8"))
]


def modules_with(fault: Fault | None) -> Modules:
    """Return the operators' modules, one of them with the fault; its text must be there exactly once."""
    modules = {name: importlib.import_module(f"fsm_spec.kernels.{name}") for name in MODULES}
    if fault is not None:
        original = modules[fault.module]
        source = inspect.getsource(original)
        assert source.count(fault.old) == 1, f"{fault.module} does not hold {fault.old!r} once"
        faulty = ModuleType(original.__name__)
        exec(compile(source.replace(fault.old, fault.new), str(original.__file__), "exec"), faulty.__dict__)  # noqa: S102 -- our own source
        modules[fault.module] = faulty
    return modules


@cache
def logits_after(text: Tokens, model: str) -> tuple[float, ...]:
    """Return the logits of a model (target or draft) after a text: random, fixed."""
    source = random.Random(f"{model} {text}")
    return tuple(source.gauss(0, 1.5) for _ in range(VOCABULARY))


class Seeded:
    """Pass draws on to an enumerator; each must name the request's seed."""

    def __init__(self, chooser: Enumerator) -> None:
        self.chooser = chooser

    def choose_one(self, law: Sequence[float], key: Key) -> int:
        """Take an outcome."""
        if key.seed != SEED:
            raise ValueError(f"{key} does not name the request's seed")
        return self.chooser.choose_one(law, key)

    def choose(
        self, law: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, purpose: Purpose
    ) -> torch.Tensor:
        """Take one outcome for each row."""
        keys = [Key(*key, purpose) for key in zip(seed.tolist(), position.tolist(), strict=True)]
        return torch.tensor([self.choose_one(one, key) for one, key in zip(law.tolist(), keys, strict=True)])


def drafted(
    modules: Modules, scenario: str, params: SamplingParams, chooser: Seeded
) -> tuple[list[int], torch.Tensor | None]:
    """Draft a chain with the sample operator -> (drafts, their laws); match needs none."""
    drafts: list[int] = []
    laws = []
    for at in range(DRAFTS):
        logits = torch.tensor([logits_after(tuple(drafts), "draft")], dtype=torch.float64)
        token, law = modules["sampling"].sample(
            logits,
            SamplingRows.of([params]),
            torch.tensor([SEED]),
            torch.tensor([at]),
            Purpose.DRAFT,
            chooser,
            "argmax" if scenario == "argmax" else "law",
            want_law=True,
        )
        drafts.append(int(token))
        laws.append(law[0])
    return drafts, None if scenario == "match" else torch.stack(laws)


def chain(modules: Modules, scenario: str, params: SamplingParams, chooser: Seeded, *, plain: bool) -> Tokens:
    """Draft and judge a chain -> emitted tokens."""
    drafts, q = drafted(modules, scenario, params, chooser)
    rule = "match" if scenario == "match" else "rejection"
    rows = [logits_after(tuple(drafts[:at]), "target") for at in range(DRAFTS + 1)]
    position = list(range(DRAFTS + 1))
    if plain:
        accepted, token = modules["acceptance_plain"].accept_plain(
            rule, rows, drafts, params, SEED, position, chooser, q=None if q is None else q.tolist()
        )
    else:
        accepted, token = modules["acceptance"].accept(
            rule,
            torch.tensor([rows], dtype=torch.float64),
            torch.tensor([drafts]),
            torch.tensor([DRAFTS]),
            SamplingRows.of([params]),
            torch.tensor([SEED]),
            torch.tensor([position]),
            chooser,
            q=None if q is None else q.unsqueeze(0),
        )
    return (*drafts[: int(accepted)], int(token))


def walked(
    modules: Modules, scenario: str, params: SamplingParams, chooser: Seeded, *, plain: bool
) -> Tokens:
    """Walk the tree -> emitted tokens behind the root."""
    texts: list[Tokens] = [()]
    for token, parent in zip(TOKENS[1:], PARENTS[1:], strict=True):
        texts.append((*texts[parent], token))
    rows = torch.tensor([[logits_after(text, "target") for text in texts]], dtype=torch.float64)
    where, seed = torch.tensor([DEPTHS]), torch.tensor([SEED])
    rule = scenario.removeprefix("walk:")
    if plain:
        walk = modules["walk_plain"].walk_plain(
            rule, rows[0].tolist(), TOKENS, PARENTS, params, SEED, DEPTHS, chooser
        )
        return (*walk.run[1:], walk.next)
    tree = Tree(
        tokens=torch.tensor([TOKENS]),
        parents=torch.tensor([PARENTS]),
        depths=where,
        scores=torch.zeros(1, len(TOKENS)),
        count=torch.tensor([len(TOKENS)]),
    )
    walk = modules["walk"].walk(rule, rows, tree, SamplingRows.of([params]), seed, where, chooser, DRAFTS)
    return (*walk.run[0, 1 : 1 + int(walk.accepted)].tolist(), int(walk.next))


def distance(modules: Modules, scenario: str, params: SamplingParams, *, plain: bool) -> float:
    """Return how far the law of one round, continued plainly, is from the target's; 1 if it has no law."""
    emitted = walked if scenario.startswith("walk") else chain

    def run(chooser: Enumerator) -> Tokens:
        text = emitted(modules, scenario, params, Seeded(chooser), plain=plain)
        while len(text) <= DRAFTS:
            p = law_plain(logits_after(text, "target"), params)
            text = (*text, chooser.choose_one(p, Key(SEED, len(text), Purpose.TARGET)))
        return text

    # A chain that matches draws the target's token for more rows than it reads.
    once = ONCE - {Purpose.TARGET} if scenario == "match" else ONCE
    try:
        found = outcome_law(enumerate_outcomes(run, once))
    except ValueError:
        return 1.0
    worst = 0.0
    for tokens in itertools.product(range(VOCABULARY), repeat=DRAFTS + 1):
        mass = 1.0
        for at, token in enumerate(tokens):
            mass *= law_plain(logits_after(tokens[:at], "target"), params)[token]
        worst = max(worst, abs(found.get(tokens, 0.0) - mass))
    return worst


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("scenario", ["argmax", "sampled", "match", "walk:match", "walk:residual"])
def test_operators_without_fault_are_exact(scenario: str, *, plain: bool) -> None:
    """The same rounds with the operators as they are have the target's law: what is refuted is the fault."""
    modules = modules_with(None)
    for params in PARAMS:
        assert distance(modules, scenario, params, plain=plain) < EXACT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.pitfall} {fault.about}".strip())
def test_faults_are_refuted(fault: Fault) -> None:
    """A planted fault changes the law at some sampling parameters."""
    modules = modules_with(fault)
    plain = fault.module.endswith("_plain")
    assert any(distance(modules, fault.scenario, params, plain=plain) > VISIBLE for params in PARAMS)


def test_pitfalls_of_operators_have_faults() -> None:
    """Each pitfall of laws and numbers that an operator can have is planted here."""
    assert {"D1", "D2", "D3", "D5", "D6", "D7", "D8", "D9", "D10", "D13", "D14", "D15"} <= {
        fault.pitfall for fault in FAULTS
    }
