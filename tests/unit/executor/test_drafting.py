"""Draft models beside the target: what their caches hold in every round, and that a perfect one is never refused."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import single_edits
import torch

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.drafting import DraftModel
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.drafter import Drafted
from fsm_spec.executor.models.language_drafter import LanguageDrafter
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import NO_TOKEN, Note, ToyDraftCache, ToyDrafter
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.language.findings import SpecFindings
from fsm_spec.load import load, loads, shipped
from fsm_spec.policy import Plan, Policy, Pool, Prefill
from fsm_spec.table import Table

VOCABULARY, MASK = 9, 8
PAGES, PAGE_SIZE = 60, 4
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (4, 2), (3, 3, 1, 5))
LIMIT = 30
# Rows of one round whose tokens the target has not judged, at most.
DRAFTS = 4
SMALL = {"g": 3, "b": 3, "d": 3, "k": 2, "v": 6}


def drafting() -> list[str]:
    """List the shipped specs with draft models."""
    return sorted(name for name, path in shipped().items() if load(path).spec.models)


class Watched(ToyDrafter):
    """Keep what every row of a draft model saw, by position."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, VOCABULARY, VOCABULARY)
        self.seen: list[tuple[Note, ...]] = []

    def forward(self, rows: RowBatch, cache: ToyDraftCache, features: torch.Tensor | None = None) -> Drafted:
        """Run rows, and keep what each of them saw."""
        drafted = super().forward(rows, cache, features)
        self.seen += [
            self._seen(rows, cache, request, row)[:-1]
            for request in range(rows.requests)
            for row in range(rows.row_start[request + 1] - rows.row_start[request])
        ]
        return drafted


class Now:
    """Preempt all requests once; decide as ever otherwise."""

    def __call__(self, engine: Engine) -> Plan:
        """Plan the next iteration."""
        live = len(engine.live)
        if engine.iterations == 6 and live:
            keep = np.zeros(live, np.int32)
            return Plan(tuple(range(live)), keep, np.zeros(0, np.int64), (), (), ())
        return engine.decide()


def run(table: Table, prompts: Sequence[Sequence[int]], chunk: int) -> tuple[list[Request], Watched]:
    """Run prompts together through a table on toys, with prefill in chunks and a preemption."""
    name, plan = next(iter(table.models.items()))
    drafter = Watched(plan.kind)
    allocator = PageAllocator(PAGES, PAGE_SIZE)
    slots = PAGES * PAGE_SIZE
    runner = Runner(
        table,
        ToyModel(VOCABULARY, VOCABULARY),
        ToyCache(slots),
        allocator,
        vocabulary=VOCABULARY,
        mask_id=MASK,
        drafters={name: DraftModel(drafter, ToyDraftCache(slots))},
    )
    policy = Policy(prefill=Prefill(tokens=chunk, mixed=True))
    engine = Engine(table, policy, Pool(PAGES, PAGE_SIZE), runner, planner=Now())
    requests = []
    for index, prompt in enumerate(prompts):
        request = Request(prompt, LIMIT, SamplingParams(0.7), seed=index)
        runner.add(engine.submit(len(prompt), LIMIT), request)
        requests.append(request)
    while engine.has_work:
        engine.iterate()
    return requests, drafter


def states_of(text: list[int]) -> list[float]:
    """Compute the target's hidden state of every position of a text afresh."""
    model, count = ToyModel(VOCABULARY, VOCABULARY), len(text)
    rows = RowBatch(
        torch.tensor(text),
        torch.arange(count),
        torch.arange(count),
        [0, count],
        torch.arange(0)[None],
        [0],
        [torch.ones(count, count).tril().bool()],
        torch.arange(count),
    )
    return [
        round(state, 6) for state in model.forward_captured(rows, ToyCache(count), (0,))[1][:, 0].tolist()
    ]


def truth(kind: str, text: list[int]) -> list[Note]:
    """Say what a draft cache has to hold of a text: a row of each position."""
    states = states_of(text)
    if kind == "language_model":
        return [(place, token, 0.0) for place, token in enumerate(text)]
    if kind == "context_head":
        return [(place, NO_TOKEN, state) for place, state in enumerate(states)]
    return [(place, token, states[place]) for place, token in enumerate(text[1:])]


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("spec", drafting())
def test_draft_caches_hold_verified_rows_only(spec: str, chunk: int) -> None:
    """Every row of every draft forward sees each position once: verified text, then this round's drafts.

    A row too many, one that a rejected draft has left, a hidden state of another position, or one from before a
    preemption would be seen here.
    """
    params = {name: SMALL[name] for name in load(spec).spec.params}
    table = compile_table(load(spec).spec, params)
    requests, drafter = run(table, PROMPTS, chunk)
    longest = assert_in_order(table, requests, drafter)
    assert longest > max(map(len, PROMPTS)) + LIMIT - 2 * DRAFTS


def slips(spec: str) -> list[str]:
    """Draw edits of what a spec's draft model reads and keeps: places, slots, sources, fates, keeps, carried pieces."""
    text = shipped()[spec].read_text()
    forwards = {name for name, each in load(spec).spec.forwards.items() if each.model is not None}

    def draws(told: str) -> bool:
        path = told.partition(":")[0].split(".")
        if path[0] == "forwards":
            return path[1] in forwards and path[-1] in ("at", "slot", "source", "count", "kv")
        return path[0] == "transitions" and ("set" in path or path[-1] == "keep")

    chosen = [(told, data) for told, data in single_edits.edits(text) if draws(told)]
    return [single_edits.dumped(data) for _, data in random.Random(11).sample(chosen, 24)]


@pytest.mark.parametrize("spec", drafting())
def test_slips_of_draft_caches_are_findings(spec: str) -> None:
    """Output stays right whatever a draft cache holds: a slip that loads must leave every cache as it should be."""
    refused = 0
    for text in slips(spec):
        try:
            slipped = loads(text).spec
        except SpecFindings:
            refused += 1
            continue
        table = compile_table(slipped, {name: SMALL[name] for name in slipped.params})
        requests, drafter = run(table, PROMPTS, 64)
        assert_in_order(table, requests, drafter)
        if spec == "draft_lm":
            assert 4.0 == acceptance_of_itself(compile_table(slipped, {"g": 3})), text
    assert refused > 12


def acceptance_of_itself(table: Table) -> float | None:
    """Give the acceptance length where the target drafts for itself: g + 1 where no draft is lost."""
    model = tiny_model(layers=2, vocab=48)
    drafter = LanguageDrafter(model, model.config)
    session = Session(table, model, pool=Pool(40, 8), drafters={"draft": drafter})
    session.add([3, 1, 4, 1, 5], Options(33))
    session.run()
    return session.result(0).acceptance_length


def assert_in_order(table: Table, requests: Sequence[Request], drafter: Watched) -> int:
    """Hold every row to have seen each position once, verified text first; gives the most verified rows seen."""
    kind = next(iter(table.models.values())).kind
    known = [truth(kind, request.text.tolist()) for request in requests]
    longest = 0
    for notes in drafter.seen:
        # Positions of this round's drafts may not be verified yet; none of them lies before the others.
        verified = max(agreeing(notes, line) for line in known)
        assert verified >= len(notes) - DRAFTS, notes
        assert [place for place, _, _ in notes] == list(range(len(notes))), notes
        longest = max(longest, verified)
    return longest


def agreeing(notes: Sequence[Note], line: Sequence[Note]) -> int:
    """Count the first notes that are as a line says."""
    for index, (note, wanted) in enumerate(zip(notes, line, strict=False)):
        if note != wanted:
            return index
    return min(len(notes), len(line))


def test_a_perfect_draft_model_is_never_refused() -> None:
    """With the target itself as draft model every greedy draft stands, through all caches and rounds."""
    model = tiny_model(layers=2, vocab=48)
    table = compile_table(load("draft_lm").spec, {"g": 3})
    drafter = LanguageDrafter(model, model.config)
    plain = Session(compile_table(load("ar").spec), model, pool=Pool(40, 8))
    drafted = Session(table, model, pool=Pool(40, 8), drafters={"draft": drafter})
    for session in (plain, drafted):
        session.add([3, 1, 4, 1, 5], Options(33))
        session.run()
    # The mask's id is never drafted, so the text must not hold it: the first token, and eight rounds of four.
    assert drafted.mask_id not in plain.result(0).token_ids
    assert plain.result(0).token_ids == drafted.result(0).token_ids
    assert (8, 4.0) == (drafted.result(0).rounds, drafted.result(0).acceptance_length)


def test_missing_draft_models_and_heads_are_errors() -> None:
    """A confidence head that is not there must not read as full confidence."""
    model = tiny_model(layers=2, vocab=48)
    table = compile_table(load("draft_lm").spec)
    with pytest.raises(UserError, match="drafts with a language_model called draft, and none is given"):
        Session(table, model, pool=Pool(40, 8))
