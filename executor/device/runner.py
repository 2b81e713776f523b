"""The resident runner: a `Backend` of the engine whose requests live on the device.

The host sends what it has decided, in one copy, runs phases, and reads what they say, in one copy; in between nothing
waits. Columns, carries, pages and text are the device's; the host follows by the results, and holds both to each
other at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.engine import Args, Chunk, Launch
from fsm_spec.errors import FsmSpecError
from fsm_spec.executor.device.control import NO_WISHES, Wishes, numbers_of, refuse, wishes_of
from fsm_spec.executor.device.graphs import Graphs, Progress, buckets
from fsm_spec.executor.device.levels import levels_of
from fsm_spec.executor.device.mailbox import Mailbox, Opening, row_width
from fsm_spec.executor.device.phase import Machine, Phase
from fsm_spec.executor.device.prefill import Prefill
from fsm_spec.executor.device.results import Form, Results
from fsm_spec.executor.device.scores import PROMPT, Scored, ScoreForm
from fsm_spec.executor.request import Request
from fsm_spec.language import expression
from fsm_spec.step import Columns, Step, evaluate
from fsm_spec.table import END, WAIT, Table
from fsm_spec.tiers import Tiers

Numbers = NDArray[np.int64]


class DeviceDiverged(FsmSpecError):
    """Say that device and host took different steps: a fault of ours, never a user's."""


@dataclass(frozen=True)
class Ticket:
    """Hold what a launch will say: the form and the requests of each part, and the copy that brings it."""

    parts: list[tuple[Form | ScoreForm, Numbers, int]]
    """form, requests, and places of the batch"""
    wait: Callable[[], Numbers] | None

    def results(self) -> list[Results | Scored]:
        """Wait for the copy, and give the results of each part."""
        if self.wait is None:
            return []
        values = self.wait()
        found: list[Results | Scored] = []
        at = 0
        for form, numbers, shape in self.parts:
            width = shape // len(numbers)
            found.append(form.read(numbers, values[at : at + shape].reshape(len(numbers), width)))
            at += shape
        return found


class DeviceRunner:
    """Run launches on resident requests.

    All runs on the machine's device. With `required`, a phase without a graph is refused.
    """

    def __init__(
        self,
        tiers: Tiers,
        machine: Machine,
        *,
        required: bool = False,
    ) -> None:
        self.tiers = tiers
        self.machine = machine
        self.place = machine.place
        self.state = machine.state
        self.requests: dict[int, Request] = {}
        self.forwards = 0
        lines = self.state.sizes.lines
        self.graphs = Graphs(machine.place, buckets(lines), machine.weights.view, required=required)
        self._mail = Mailbox()
        self._opening = Opening(self.state)
        self._lines: dict[int, int] = {}
        self._free = list(range(lines - 1, -1, -1))
        self._pages: dict[int, int] = {}
        self._admitted: list[int] = []
        self._texts: list[int] = []
        self._phases: dict[tuple[str, tuple[str, ...], Wishes], Phase] = {}
        self._prefills: dict[str, Prefill] = {}
        self._results: dict[str, Results] = {}
        self._firsts: dict[int, Results] = {}
        # Scored rows by event, those behind prefills by request.
        self._scored: dict[str | int, Scored] = {}
        # What newcomers ask of their logits, by line; and lines that were not left neutral.
        self._controls: list[tuple[int, Numbers]] = []
        self._shaped: set[int] = set()
        self.use(tiers.largest)

    def use(self, table: Table) -> None:
        """Run the coming launches under this table."""
        self.table = table
        self.prefill = self._prefills.get(table.digest)
        if self.prefill is None:
            self.prefill = self._prefills[table.digest] = Prefill(table, self.machine)

    def capture(self, progress: Progress | None = None) -> None:
        """Capture the graphs of all phases of all tiers; raises UserError where one is required and refused."""
        with torch.inference_mode():
            self.graphs.capture_all([self._opening, *self.phases()], progress)

    def phases(self, wishes: Wishes = NO_WISHES) -> list[Phase]:
        """List the phases of all tiers: each state alone, and those of the target that a launch may meet together."""
        found: dict[tuple[str, tuple[str, ...]], Phase] = {}
        for table in self.tiers.distinct:
            singles = [(state.name,) for state in table.states if state.forward is not None]
            joined = [each for level in levels_of(table) for each in level]
            for states in (*singles, *joined):
                found[table.digest, states] = self._phase(table, states, wishes)
        return list(found.values())

    # Requests --------------------------------------------------------------------------------------------------

    def add(self, number: int, request: Request) -> None:
        """Make a request known under the number that the engine gave it.

        Raises UserError for one that asks for what the device cannot hold.
        """
        refuse(request, self.table)
        self.requests[number] = request

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""
        line = self._lines.get(request)
        if line is None:
            self._pages[request] = pages
        else:
            self._mail.entry(line).pages = pages

    def _admit(self, number: int, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Give a request a line, with its text and parameters."""
        if after["state"] == self.table.codes[END]:
            self.requests.pop(number)
            return
        line = self._lines[number] = self._free.pop()
        entry = self._mail.entry(line)
        entry.pages = self._pages.pop(number, 0)
        entry.request = self.requests[number]
        assert self.prefill is not None
        entry.columns = before if self.prefill.admits_here else after
        self._admitted.append(line)
        self._texts.append(number)
        neutral = entry.request.controls.neutral
        if not neutral or line in self._shaped:
            machine = self.machine
            self._controls.append((line, numbers_of(entry.request, machine.vocabulary, machine.mask_id)))
            (self._shaped.discard if neutral else self._shaped.add)(line)

    def _leave(self, number: int, *, known: bool) -> None:
        """Free a request's line; one that is not `known` any more is forgotten."""
        line = self._lines.pop(number, None)
        self._pages.pop(number, None)
        if line is not None:
            entry = self._mail.entry(line)
            entry.pages, entry.request = 0, None
            entry.columns = self.table.new_request(0, 0) | {"state": self.table.codes[END]}
            self._free.append(line)
            if line in self._admitted:
                self._admitted.remove(line)
                self._texts.remove(number)
        if not known:
            self.requests.pop(number, None)

    # Launches --------------------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> list[Args]:
        """Run a launch: what the host has decided, the phases of all groups, and prefill chunks."""
        by_model: dict[str | None, list[tuple[str, Numbers]]] = {}
        for group in launch.groups:
            model = self._plan_model(group.state)
            by_model.setdefault(model, []).append((group.state, group.requests))
        batches = []
        for model, groups in by_model.items():
            joined = [groups] if model is None else [[group] for group in groups]
            batches += [
                (tuple(state for state, _ in part), np.concatenate([numbers for _, numbers in part]))
                for part in joined
            ]
        ticket = self.submit(batches, launch.chunks)
        for _ in self.receive(ticket):
            pass
        return [self._of(group.state, group.requests).args for group in launch.groups]

    def fly(self, requests: Numbers, chunks: Sequence[Chunk]) -> Ticket:
        """Queue a whole round of requests, whatever states they are in by then, and prefill chunks."""
        batches = [(each, requests) for level in self.levels() for each in level] if len(requests) else []
        return self.submit(batches, chunks)

    def levels(self) -> list[list[tuple[str, ...]]]:
        """List the phases of a round by launch (`levels.py`)."""
        levels: list[list[tuple[str, ...]]] = self.table.cached("levels", lambda: levels_of(self.table))
        return levels

    def submit(self, batches: Sequence[tuple[tuple[str, ...], Numbers]], chunks: Sequence[Chunk]) -> Ticket:
        """Send mail, and queue phases of (states, requests) and chunks on the device; nothing here waits."""
        lines = [self._padded(numbers) for _, numbers in batches]
        riding = np.array([self._lines[chunk.request] for chunk in chunks], np.int64)
        with torch.inference_mode():
            rest = self._send([*lines, riding])
            outputs: list[tuple[Form | ScoreForm, Numbers, Tensor]] = []
            for (states, numbers), placed in zip(batches, rest[:-1], strict=True):
                phase = self._phase(self.table, states, self._wishes(numbers))
                self.forwards += phase.height > 0 and phase.drafter is None
                packed = self.graphs.run(phase, placed)
                outputs += [
                    (form, numbers, part[: len(numbers)].flatten().clone())
                    for form, part in zip(phase.results, packed, strict=True)
                ]
            outputs += self._prefilled(chunks, rest[-1])
            if not outputs:
                return Ticket([], None)
            wait = self.place.download(torch.cat([packed for _, _, packed in outputs]))
        return Ticket([(form, numbers, packed.numel()) for form, numbers, packed in outputs], wait)

    def _wishes(self, numbers: Numbers) -> Wishes:
        return wishes_of([self.requests[number] for number in numbers.tolist()])

    def _prefilled(
        self, chunks: Sequence[Chunk], lines: Tensor
    ) -> list[tuple[Form | ScoreForm, Numbers, Tensor]]:
        """Run prefill chunks; give the results of those that were the last of their texts, and scores."""
        assert self.prefill is not None
        outputs = []
        for index, chunk in enumerate(chunks):
            number = np.array([chunk.request])
            scores = self.requests[chunk.request].scores
            prompt = scores is not None and scores.wants_prompt
            found = self.prefill.run(
                chunk, lines[index : index + 1], self._wishes(number), scores_prompt=prompt
            )
            self.forwards += 1
            outputs += [(form, number, packed.flatten()) for form, packed in found]
        return outputs

    def receive(self, ticket: Ticket) -> Iterator[Results]:
        """Wait for a launch, and give the results of its events in order, without requests that were dead.

        While one is given, `stops` and `settle` answer for it.
        """
        for results in ticket.results():
            if isinstance(results, Scored):
                self._hear(results)
                continue
            found = results.take(np.flatnonzero(results.alive))
            if results.form.event == life_cycle.FIRST:
                if len(found.numbers):
                    self._firsts[int(found.numbers[0])] = found
            else:
                self._results[results.form.event] = found
            yield found

    def _hear(self, scored: Scored) -> None:
        """Keep scored rows until their event is followed; those of a prompt have none."""
        number = int(scored.numbers[0])
        if scored.form.event != PROMPT:
            self._scored[number if scored.form.event == life_cycle.FIRST else scored.form.event] = scored
            return
        request = self.requests[number]
        assert request.scores is not None, "a prompt is scored for whoever wants it"
        found = list(scored.of(number))
        request.scores.know_prompt(
            found[0][0] - 1, request.text[: request.prompt], [row for *_, row in found]
        )

    def _plan_model(self, state: str) -> str | None:
        return self.table.forwards[self.table.state(state).forward or ""].model

    def _phase(self, table: Table, states: tuple[str, ...], wishes: Wishes) -> Phase:
        key = (table.digest, states, wishes)
        if key not in self._phases:
            self._phases[key] = Phase(table, states, self.machine, wishes)
        return self._phases[key]

    def _padded(self, numbers: Numbers) -> Numbers:
        """Give the lines of requests, filled up to a batch size with the line that is nobody's."""
        lines = np.full(self.graphs.bucket(len(numbers)), self.state.padding, np.int64)
        lines[: len(numbers)] = [self._lines[number] for number in numbers.tolist()]
        return lines

    def _send(self, more: Sequence[Numbers]) -> list[Tensor]:
        """Send mail, newcomers' texts and `more` in one copy; mail is followed, the rest given as tensors."""
        rows = self.graphs.bucket(len(self._mail.entries)) if self._mail.entries else 0
        mail = self._mail.pack(self.state, rows)
        texts = [self.requests[number].text for number in self._texts]
        admitted = np.array(self._admitted, np.int64)
        controls = [numbers for _, numbers in self._controls]
        parts = [mail.reshape(-1), *texts, admitted, *controls, *more]
        sent = self.place.upload(np.concatenate(parts))
        pieces = list(sent.split([len(part) for part in parts]))
        if rows:
            self.graphs.run(self._opening, pieces[0].view(rows, row_width(self.state)))
        for line, text in zip(self._admitted, pieces[1 : 1 + len(texts)], strict=True):
            self.state.text[line, : len(text)].copy_(text)
        first = 2 + len(texts)
        for (line, _), numbers in zip(self._controls, pieces[first : first + len(controls)], strict=True):
            self.state.put_controls(line, numbers)
        assert self.prefill is not None
        if len(admitted) and self.prefill.admits_here:
            self.prefill.begin(pieces[1 + len(texts)])
        self._mail.entries.clear()
        self._admitted.clear()
        self._texts.clear()
        self._controls.clear()
        return pieces[first + len(controls) :]

    # Transitions -----------------------------------------------------------------------------------------------

    def stops(self, event: str, requests: Numbers, columns: Columns, args: Args) -> NDArray[np.int32]:
        """Give the tokens before the first stop token of each run, as the device found them."""
        del columns, args  # the device has its own
        found: NDArray[np.int32] = self._of(event, requests).stop
        return found

    def _of(self, event: str, requests: Numbers) -> Results:
        if event == life_cycle.FIRST:
            return self._firsts[int(requests[0])]
        results = self._results[event]
        if not np.array_equal(results.numbers, requests):
            raise DeviceDiverged(f"the device ran {event} for other requests than the host")
        return results

    def settle(self, event: str, requests: Numbers, before: Columns, done: Step) -> None:
        """Follow a step: hold it to the device's, append what was emitted, count, and let lines go."""
        if event == life_cycle.ADMIT:
            for member, number in enumerate(requests.tolist()):
                self._admit(number, _line(before, member), _line(done.columns, member))
                if number in self.requests:
                    self.requests[number].cached = int(done.columns["kv"][member])
            return
        if event in self.table.codes or event == life_cycle.FIRST:
            self._follow(event, requests, before, done)
        elif event == life_cycle.HALT:
            for number, emitted in zip(requests.tolist(), done.columns["emitted"].tolist(), strict=True):
                # One that ended by itself is forgotten already; its text is the session's to cut.
                if number in self.requests:
                    self.requests[number].halt(emitted)
        if event in (life_cycle.PREEMPT, life_cycle.ABORT, life_cycle.HALT):
            for number in requests.tolist():
                self._leave(number, known=event == life_cycle.PREEMPT)

    def _follow(self, event: str, requests: Numbers, before: Columns, done: Step) -> None:
        """Follow a step that the device has taken."""
        results = self._of(event, requests)
        self._compare(event, results, done)
        ran = self._runs_target(event, before)
        ended = done.columns["state"] == self.table.codes[END]
        for member, number in enumerate(requests.tolist()):
            request = self.requests[number]
            emitted = int(done.emitted[member]) if self.table.events[event].emits else 0
            scored = self._scored.get(number if event == life_cycle.FIRST else event)
            if request.scores is not None and scored is not None:
                for row in scored.of(number):
                    request.scores.know(*row)
            if emitted:
                request.append(results.run[member, :emitted])
            if event != life_cycle.FIRST:
                request.emitted += emitted
                request.forwards += int(ran[member])
                state = self.table.states[int(done.columns["state"][member])]
                request.rounds += bool(ended[member]) or state.round
            else:
                self._firsts.pop(number)
                self._scored.pop(number, None)
            if ended[member]:
                self._leave(number, known=False)

    @staticmethod
    def _compare(event: str, results: Results, done: Step) -> None:
        """Raise DeviceDiverged where the device took another transition, or has other columns."""
        if not np.array_equal(results.transition, done.transition):
            raise DeviceDiverged(f"device and host took different transitions at {event}")
        for name, values in done.columns.items():
            if not np.array_equal(results.columns[name], values):
                raise DeviceDiverged(f"device and host differ in {name} after {event}")

    def _runs_target(self, event: str, columns: Columns) -> NDArray[np.bool_]:
        """Tell for which requests an event's forward has rows of the target."""
        name = self.table.state(event).forward if event in self.table.codes else None
        plan = self.table.forwards[name] if name is not None else None
        if plan is None or plan.model is not None or not plan.rows:
            none: NDArray[np.bool_] = np.zeros(len(columns["state"]), np.bool_)
            return none
        total = expression.total(segment.count for segment in plan.segments if segment.query)
        counts = np.asarray(evaluate(self.table, total, columns, np))
        ran: NDArray[np.bool_] = counts > 0
        return ran

    # Checks ----------------------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Count the free pages on the device, mail on its way followed; waits for the device."""
        with torch.inference_mode():
            self._send([])
        return int(self.state.free_count)

    def held_pages(self, request: int) -> int:
        """Count the pages that a request holds on the device; waits for the device."""
        with torch.inference_mode():
            self._send([])
        line = self._lines.get(request)
        return 0 if line is None else int(self.state.held[line])


def _line(columns: Columns, member: int) -> dict[str, int]:
    return {name: int(values[member]) for name, values in columns.items()}


__all__ = ["WAIT", "DeviceDiverged", "DeviceRunner", "Ticket"]
