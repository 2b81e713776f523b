"""What a device is told to do, and who does it: one order a launch, of plain numbers and names.

Nothing in an order belongs to this process: others that hold parts of the same model carry out the same orders on
states of their own, and come to the same (`executor/tensor_parallel.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.executor.block import Layout
from fsm_spec.executor.device.control import NO_WISHES, Wishes
from fsm_spec.executor.device.grammars import Masks
from fsm_spec.executor.device.graphs import Graphs, Progress, Work, buckets
from fsm_spec.executor.device.levels import levels_of
from fsm_spec.executor.device.mailbox import Opening
from fsm_spec.executor.device.mixed import Mixed
from fsm_spec.executor.device.peek import Peek
from fsm_spec.executor.device.phase import Machine, Phase
from fsm_spec.executor.device.pieces import PIECE_NUMBERS, most_pieces, piece_sizes
from fsm_spec.executor.device.prefill import Chunks, Prefill
from fsm_spec.policy import Policy
from fsm_spec.table import Table
from fsm_spec.tiers import Tiers

Numbers = NDArray[np.int64]
# Graphs of chunks in the forward of a phase, at most; a family that would have more runs chunks beside its phases. At
# the quarter of a second that a capture is guessed to take, these are under two minutes of a start.
MOST_MIXED = 400


@dataclass(frozen=True)
class Letter:
    """Hold mail, one array a part; texts and what is asked of logits stand in the order of `lines`."""

    rows: int
    """rows of the mailbox"""
    whole: bool
    """whether a row says more than which pages a line holds"""
    lines: tuple[int, ...]
    """where requests begin"""
    taken: int
    """pages whose numbers are to be told"""
    parts: tuple[Numbers, ...]
    """rows, pages that come back, places of tables, their pages, lines, hits, then texts and wishes"""


@dataclass(frozen=True)
class PhaseOrder:
    """Name a phase, and the lines of its batch."""

    states: tuple[str, ...]
    wishes: Wishes
    lines: Numbers


@dataclass(frozen=True)
class ChunkOrder:
    """Name pieces of prefill chunks that run together, by the numbers of `pieces.py:numbers_of`."""

    rows: int
    wishes: Wishes
    prompt: bool
    numbers: Numbers
    rides: int | None
    """the phase of the order in whose forward they run; None for one of their own"""


@dataclass(frozen=True)
class Order:
    """Say what a device does for a launch under the table of that digest: open a letter, then run phases and chunks."""

    digest: str
    letter: Letter
    phases: tuple[PhaseOrder, ...]
    chunks: tuple[ChunkOrder, ...]
    masks: Masks | None = None


@dataclass(frozen=True)
class Done:
    """Hold the numbers of pages that were taken, and the packed results of each phase and then of each chunk order."""

    taken: Tensor | None
    packed: list[tuple[Phase | Chunks, list[Tensor]]]


class Device:
    """Carry out orders on one machine; with `required`, work without a graph is refused."""

    def __init__(self, tiers: Tiers, machine: Machine, policy: Policy, *, required: bool = False) -> None:
        self.tiers = tiers
        self.machine = machine
        self.state = machine.state
        self.tables = {table.digest: table for table in tiers.distinct}
        self.prefills = {digest: Prefill(table, machine) for digest, table in self.tables.items()}
        sizes = buckets(self.state.sizes.lines)
        self.graphs = Graphs(machine.place, sizes, machine.weights.view, required=required)
        self.openings = {whole: Opening(self.state, whole=whole) for whole in (False, True)}
        self.mixes = policy.prefill.mixed
        held = self.state.sizes
        # By digest, the most pieces of a launch.
        self.pieces = {
            digest: most_pieces(policy.prefill.tokens, held.lines, held.text, prefill.piece_rows)
            for digest, prefill in self.prefills.items()
        }
        self._phases: dict[tuple[str, tuple[str, ...], Wishes], Phase] = {}

    def capture(self, progress: Progress | None = None) -> None:
        """Capture the graphs of all work that the host may order, for requests that ask for nothing special.

        Raises UserError where one is required and refused.
        """
        with self.machine.place.active(), torch.inference_mode():
            self.graphs.capture_all(self.works(), progress)

    def works(self) -> list[tuple[Work, int]]:
        """List mail, phases of all tiers, and chunks alone and in the forward of phases, each with all its sizes."""
        sizes = self.graphs.sizes[::-1]
        mixed = self._mixed()
        self.mixes = self.mixes and len(mixed) * len(sizes) <= MOST_MIXED
        found: list[tuple[Work, int]] = []
        if self.mixes:
            found += [(work, work.size(lines)) for work in mixed for lines in sizes]
        for digest, prefill in self.prefills.items():
            chunks = prefill.chunks(prefill.piece_rows)
            found += [(chunks, number) for number in reversed(piece_sizes(self.pieces[digest]))]
        others: list[Work] = [*self.phases(), *self.openings.values()]
        found += [(work, lines) for work in others for lines in sizes]
        return found

    def _mixed(self) -> list[Mixed]:
        """List the phases that can carry chunks, each with all numbers of pieces, most pieces first."""
        return [
            Mixed(phase, prefill.chunks(prefill.piece_rows), pieces)
            for phase in self.phases()
            if self.carries(phase)
            for prefill in (self.prefills[phase.digest],)
            for pieces in reversed(piece_sizes(self.pieces[phase.digest]))
        ]

    def phases(self, wishes: Wishes = NO_WISHES) -> list[Phase]:
        """List the phases of all tiers: each state alone, and those of the target that a launch may meet together."""
        found: dict[tuple[str, tuple[str, ...]], Phase] = {}
        for table in self.tables.values():
            singles = [(state.name,) for state in table.states if state.forward is not None]
            met = [each for level in levels_of(table) for each in level]
            joined = [
                part for each in met for most in range(2, len(each) + 1) for part in combinations(each, most)
            ]
            for states in (*singles, *joined):
                found[table.digest, states] = self.phase(table, states, wishes)
        return list(found.values())

    def phase(self, table: Table, states: tuple[str, ...], wishes: Wishes) -> Phase:
        """Give a phase, made once."""
        key = (table.digest, states, wishes)
        if key not in self._phases:
            self._phases[key] = Phase(table, states, self.machine, wishes)
        return self._phases[key]

    def run(self, order: Order) -> Done:
        """Carry out an order; nothing here waits."""
        with self.machine.place.active():
            return self._run(order)

    def _run(self, order: Order) -> Done:
        letter, prefill = order.letter, self.prefills[order.digest]
        works = self._works(order)
        masks = [] if order.masks is None else [order.masks.lines, order.masks.words.reshape(-1)]
        arrays = [*letter.parts, *(given for _, given in works), *masks]
        sent = self.machine.place.upload(np.concatenate(arrays))
        pieces = list(sent.split([len(array) for array in arrays]))
        taken = self._open(letter, pieces, prefill)
        if order.masks is not None:
            self.state.hold_masks(self.mask_rows)
            self.state.allow(pieces[-2], pieces[-1].view(order.masks.words.shape))
            del pieces[-2:]
        phases, chunks = [], []
        for (work, _), given in zip(works, pieces[len(letter.parts) :], strict=True):
            if isinstance(work, Chunks):
                chunks.append((work, self._ran(work, given.view(-1, PIECE_NUMBERS))))
                continue
            packed = self._ran(work, given)
            if isinstance(work, Phase):
                phases.append((work, packed))
                continue
            own = len(work.phase.results)
            phases.append((work.phase, packed[:own]))
            chunks.insert(0, (work.chunks, packed[own:]))
        return Done(taken, [*phases, *chunks])

    def _works(self, order: Order) -> list[tuple[Phase | Mixed | Chunks, Numbers]]:
        """Give the work of an order, with the numbers that each reads: phases, then chunks that ride with none."""
        table, prefill = self.tables[order.digest], self.prefills[order.digest]
        works: list[tuple[Phase | Mixed | Chunks, Numbers]] = [
            (self.phase(table, each.states, each.wishes), each.lines) for each in order.phases
        ]
        for each in order.chunks:
            chunks, numbers = prefill.chunks(each.rows, each.wishes, prompt=each.prompt), each.numbers
            if each.rides is None:
                works.append((chunks, numbers.reshape(-1)))
                continue
            phase, lines = works[each.rides]
            assert isinstance(phase, Phase), "one order of chunks rides with a phase"
            mixed = Mixed(phase, chunks, len(numbers))
            works[each.rides] = mixed, np.concatenate([lines, numbers.reshape(-1)])
        return works

    @cached_property
    def mask_rows(self) -> int:
        """Count the rows of a launch that masks of grammars may stand for, at most."""
        plans = [(table, plan) for table in self.tables.values() for plan in table.forwards.values()]
        return max(1, *(sum(map(len, Layout(table, plan).readers)) for table, plan in plans))

    def peek(self, table: Table, phases: Sequence[PhaseOrder]) -> list[list[Numbers]]:
        """Tell, by phase and state, what stands in front of the tokens that rows would predict; waits for it."""
        found = []
        for each in phases:
            phase = self.phase(table, each.states, each.wishes)
            with self.machine.place.active():
                told = self.graphs.run(Peek(phase), self.machine.place.upload(each.lines))
                numbers = self.machine.place.download(torch.cat(told, 1))()
            widths = np.cumsum([part.shape[1] for part in told])[:-1]
            found.append(list(np.split(numbers, widths, axis=1)))
        return found

    def carries(self, phase: Phase) -> bool:
        """Tell whether chunks may run in a phase's forward: it runs the target, on no weights of its own."""
        weights = self.machine.weights
        return phase.runs_target and weights.of(gated=phase.all_gated) is weights.model

    def rides(self, chunks: Wishes, phase: Phase) -> bool:
        """Tell whether chunks of requests with such wishes run in a phase's forward.

        Where that takes a graph, only if both ask for nothing special: of each pair of wishes there would be as many
        graphs again, captured while requests wait.
        """
        plain = chunks == phase.wishes == NO_WISHES
        return self.mixes and (plain or not self.machine.place.graphs) and self.carries(phase)

    def _ran(self, work: Phase | Mixed | Chunks, given: Tensor) -> list[Tensor]:
        """Run work; its results are copied, since a graph of the same order may run once more."""
        return [part.clone() for part in self.graphs.run(work, given)]

    def _open(self, letter: Letter, pieces: list[Tensor], prefill: Prefill) -> Tensor | None:
        """Open a letter: pages that come back, then what becomes of lines, then pages with other holders, newcomers."""
        mail, returned, places, pages, lines, hits, *own = pieces
        state = self.state
        if len(returned):
            state.give_back(returned)
        if letter.rows:
            opening = self.openings[letter.whole]
            self.graphs.run(opening, mail.view(letter.rows, opening.width))
        taken = state.taken(letter.taken) if letter.taken else None
        if len(places):
            state.block_table.view(-1).index_copy_(0, places, pages.int())
        for line, text, asked in zip(letter.lines, own, own[len(letter.lines) :], strict=False):
            state.text[line, : len(text)].copy_(text)
            if len(asked):
                state.put_controls(line, asked)
        if letter.lines and prefill.admits_here:
            prefill.begin(lines, hits)
        return taken
