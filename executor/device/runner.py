"""The resident runner: a `Backend` of the engine whose requests live on the device.

The host sends what it has decided, in one copy, runs phases, and reads what they say, in one copy; in between nothing
waits. Columns, carries, pages and text are the device's; the host follows by the results, and holds both to each
other at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.errors import FsmSpecError
from fsm_spec.executor.device.control import Wishes, refuse, wishes_of
from fsm_spec.executor.device.grammars import Masks, MaskTable
from fsm_spec.executor.device.graphs import Progress
from fsm_spec.executor.device.levels import levels_of
from fsm_spec.executor.device.mailbox import Taken
from fsm_spec.executor.device.orders import ChunkOrder, Device, Done, Order, PhaseOrder
from fsm_spec.executor.device.pages import DevicePages
from fsm_spec.executor.device.phase import Phase
from fsm_spec.executor.device.pieces import numbers_of as piece_numbers
from fsm_spec.executor.device.pieces import pieces_of
from fsm_spec.executor.device.place import require_bytes
from fsm_spec.executor.device.residents import Residents
from fsm_spec.executor.device.results import Form, Results
from fsm_spec.executor.device.scores import PROMPT, Scored, ScoreForm
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.language import expression
from fsm_spec.launch import Args, Chunk, Launch
from fsm_spec.step import Columns, Step, evaluate
from fsm_spec.table import END, WAIT, Table

Numbers = NDArray[np.int64]
# The request of what is about none.
NOBODY = -1


class DeviceDiverged(FsmSpecError):
    """Say that device and host took different steps: a fault of ours, never a user's."""


@dataclass(frozen=True)
class Ticket:
    """Hold what a launch will say: the form and the requests of each part, and the copy that brings it."""

    parts: list[tuple[Form | ScoreForm, Numbers, int]]
    """form, requests, and places of the batch"""
    wait: Callable[[], Numbers] | None
    taken: Sequence[Taken] = ()
    """whose pages come in front of the results"""

    def results(self, pages: DevicePages) -> list[Results | Scored]:
        """Wait for the copy, note the pages that were taken, and give the results of each part."""
        if self.wait is None:
            return []
        values = self.wait()
        found: list[Results | Scored] = []
        at = 0
        for taken in self.taken:
            for number, count in zip(taken.numbers, taken.counts, strict=True):
                pages.learn(number, values[at : at + count].tolist())
                at += count
        for form, numbers, shape in self.parts:
            width = shape // len(numbers)
            found.append(form.read(numbers, values[at : at + shape].reshape(len(numbers), width)))
            at += shape
        return found


class DeviceRunner:
    """Run launches on resident requests.

    Orders go to `tell` as well, where other processes hold parts of the model.
    """

    def __init__(self, device: Device, *, tell: Callable[[Order | None], None] | None = None) -> None:
        self.device = device
        self.machine = device.machine
        self.state, self.graphs = device.state, device.graphs
        self._tell = tell
        self.residents = Residents(self.machine, self.graphs)
        self.requests, self.pages = self.residents.requests, self.residents.pages
        self.forwards = 0
        # Requests whose logits were no numbers, until the session asks for them.
        self.faulty: set[int] = set()
        # Numbers of pages that were taken, on their way back.
        self._taken: list[tuple[Taken, Tensor]] = []
        self._results: dict[str, Results] = {}
        self._firsts: dict[int, Results] = {}
        # Scored rows by event, those behind prefills by request.
        self._scored: dict[str | int, Scored] = {}
        self.use(device.tiers.largest)

    def use(self, table: Table) -> None:
        """Run the coming launches under this table."""
        self.table = table
        self.prefill = self.device.prefills[table.digest]
        self.residents.use(table, admits_here=self.prefill.admits_here)

    @property
    def prefixes(self) -> PrefixCache | None:
        """Give the cache of full pages, if there is one."""
        return self.residents.prefixes

    @prefixes.setter
    def prefixes(self, prefixes: PrefixCache | None) -> None:
        self.residents.prefixes = prefixes

    def capture(self, progress: Progress | None = None) -> None:
        """Capture the graphs of all phases of all tiers; raises UserError where one is required and refused."""
        if self._tell is not None:
            self._tell(None)
        self.device.capture(progress)

    # Requests --------------------------------------------------------------------------------------------------

    def add(self, number: int, request: Request) -> None:
        """Make a request known under the number that the engine gave it.

        Raises UserError for one that asks for what the device cannot hold.
        """
        refuse(request, self.table)
        if request.controls.grammar is not None and self.state.allowed is None:
            needed = self.state.mask_bytes(self.device.mask_rows)
            require_bytes(
                self.machine.place, needed, "a grammar's masks", "leave the grammar out, or let fewer run"
            )
        self.requests[number] = request

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""
        self.residents.resize(request, pages)

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
        phases = tuple(
            PhaseOrder(states, self._wishes(numbers), self.residents.padded(numbers))
            for states, numbers in batches
        )
        orders, riding = self._chunk_orders(chunks, phases)
        masks = self._masks(phases, batches, chunks)
        done = self._carry_out(phases, orders, masks)
        outputs: list[tuple[Form | ScoreForm, Numbers, Tensor]] = []
        for (work, packed), numbers in zip(
            done.packed, [*(each for _, each in batches), *riding], strict=True
        ):
            self.forwards += isinstance(work, Phase) and work.runs_target
            outputs += [
                (form, numbers, part[: len(numbers)].flatten())
                for form, part in zip(work.results, packed, strict=True)
            ]
        self.forwards += sum(order.rides is None for order in orders)
        taken, self._taken = self._taken, []
        told = [*(pages for _, pages in taken), *(packed for _, _, packed in outputs)]
        if not told:
            return Ticket([], None)
        with torch.inference_mode():
            wait = self.machine.place.download(torch.cat(told))
        parts = [(form, numbers, packed.numel()) for form, numbers, packed in outputs]
        return Ticket(parts, wait, [each for each, _ in taken])

    def _masks(
        self,
        phases: tuple[PhaseOrder, ...],
        batches: Sequence[tuple[tuple[str, ...], Numbers]],
        chunks: Sequence[Chunk],
    ) -> Masks | None:
        """Ask the device what rows see, where a request follows a grammar, and tell which tokens these may give."""
        followed = {number for _, numbers in batches for number in numbers.tolist() if self._follows(number)}
        first = [chunk.request for chunk in chunks if chunk.last and self._follows(chunk.request)]
        if not followed and not first and not any(self._follows(chunk.request) for chunk in chunks):
            return None
        table = MaskTable(self.machine.vocabulary, self.device.mask_rows, self.machine.mask_id)
        for number in first:
            request = self.requests[number]
            table.allow(self.residents.lines[number], request, 0, request.length, [], draft=False)
        if followed:
            # What the host has decided comes first: columns and carries of newcomers.
            self._carry_out()
            for number, row, position, ahead, draft in self._seen(phases, batches, followed):
                table.allow(
                    self.residents.lines[number], self.requests[number], row, position, ahead, draft=draft
                )
        return table.masks()

    def _follows(self, number: int) -> bool:
        return self.requests[number].controls.grammar is not None

    @property
    def follows(self) -> bool:
        """Tell whether a request that waits or runs has a grammar: the host has to see each round before the next."""
        return any(each.controls.grammar is not None for each in self.requests.values())

    def _seen(
        self,
        phases: tuple[PhaseOrder, ...],
        batches: Sequence[tuple[tuple[str, ...], Numbers]],
        followed: set[int],
    ) -> Iterator[tuple[int, int, int, list[int], bool]]:
        """Wait for what the device tells of rows -> request, mask, position, the tokens in front, and if it drafts."""
        with torch.inference_mode():
            told = self.device.peek(self.table, phases)
        for order, (_, numbers), parts in zip(phases, batches, told, strict=True):
            phase = self.device.phase(self.table, order.states, order.wishes)
            for asked, part in zip(phase.asked, parts, strict=True):
                for number, line in zip(numbers.tolist(), part, strict=False):
                    if number in followed:
                        yield from ((number, *row) for row in asked.rows(line))

    def _carry_out(
        self,
        phases: tuple[PhaseOrder, ...] = (),
        chunks: tuple[ChunkOrder, ...] = (),
        masks: Masks | None = None,
    ) -> Done:
        """Put what waits in the mailbox and work into an order, and let all processes carry it out."""
        letter, taken = self.residents.letter()
        order = Order(self.table.digest, letter, phases, chunks, masks)
        if self._tell is not None:
            self._tell(order)
        with torch.inference_mode():
            done = self.device.run(order)
        if done.taken is not None:
            self._taken.append((taken, done.taken))
        return done

    def _wishes(self, numbers: Numbers) -> Wishes:
        return wishes_of([self.requests[number] for number in numbers.tolist()])

    def _chunk_orders(
        self, chunks: Sequence[Chunk], phases: Sequence[PhaseOrder]
    ) -> tuple[tuple[ChunkOrder, ...], list[Numbers]]:
        """Cut prefill chunks into pieces -> orders, and the request of each piece that ends a chunk, NOBODY of others.

        They ride with the first phase that can carry them. Prompts that are scored run alone, in one piece each.
        """
        plain, orders, riding = [], [], []
        for chunk in chunks:
            scores = self.requests[chunk.request].scores
            if scores is None or not scores.wants_prompt:
                plain.append(chunk)
                continue
            ((order, numbers),) = self._pieces([chunk], self.prefill.alone(chunk), (), prompt=True)
            orders.append(order)
            riding.append(numbers)
        if plain:
            ordered = self._pieces(plain, self.prefill.rows_of(plain), phases, prompt=False)
            orders[:0] = [order for order, _ in ordered]
            riding[:0] = [numbers for _, numbers in ordered]
        return tuple(orders), riding

    def _carrier(self, wishes: Wishes, phases: Sequence[PhaseOrder]) -> int | None:
        """Find the number of the first phase in whose forward chunks with such wishes run."""
        for number, each in enumerate(phases):
            if self.device.rides(wishes, self.device.phase(self.table, each.states, each.wishes)):
                return number
        return None

    def _pieces(
        self, chunks: Sequence[Chunk], rows: int, phases: Sequence[PhaseOrder], *, prompt: bool
    ) -> list[tuple[ChunkOrder, Numbers]]:
        """Order chunks in pieces of so many rows -> orders, each with the requests of its pieces.

        The first one rides with a phase, where one of `phases` carries it; the pieces beyond those that a launch may
        have run behind it.
        """
        pieces: list[tuple[int, ...]] = []
        numbers: list[int] = []
        for chunk in chunks:
            own = pieces_of(chunk, self.residents.lines[chunk.request], rows, self.table.prefill_block)
            pieces += own
            numbers += [NOBODY] * (len(own) - 1) + [chunk.request]
        wishes = self._wishes(np.array([chunk.request for chunk in chunks], np.int64))
        rides, most = self._carrier(wishes, phases), self.device.pieces[self.table.digest]
        orders = []
        for first in range(0, len(pieces), most):
            given = piece_numbers(pieces[first : first + most], self.state.padding)
            order = ChunkOrder(rows, wishes, prompt, given, None if first else rides)
            orders.append((order, np.array(numbers[first : first + most], np.int64)))
        return orders

    def receive(self, ticket: Ticket) -> Iterator[Results]:
        """Wait for a launch, and give the results of its events in order, without requests that were dead.

        While one is given, `stops` and `settle` answer for it.
        """
        return self._given(ticket.results(self.pages))

    def _given(self, arrived: Sequence[Results | Scored]) -> Iterator[Results]:
        """Give results one by one."""
        for results in arrived:
            if isinstance(results, Scored):
                self._hear(results)
                continue
            found = results.take(np.flatnonzero(results.alive))
            self.faulty.update(found.numbers[found.faulty].tolist())
            if results.form.event == life_cycle.FIRST:
                for member, number in enumerate(found.numbers.tolist()):
                    self._firsts[number] = found.take(np.array([member]))
            else:
                self._results[results.form.event] = found
            yield found

    def _hear(self, scored: Scored) -> None:
        """Keep scored rows until their event is followed; those of a prompt have none."""
        if scored.form.event == life_cycle.FIRST:
            self._scored.update(dict.fromkeys(scored.numbers.tolist(), scored))
            return
        if scored.form.event != PROMPT:
            self._scored[scored.form.event] = scored
            return
        number = int(scored.numbers[0])
        request = self.requests[number]
        assert request.scores is not None, "a prompt is scored for whoever wants it"
        found = list(scored.of(number))
        request.scores.know_prompt(
            found[0][0] - 1, request.text[: request.prompt], [row for *_, row in found]
        )

    def _plan_model(self, state: str) -> str | None:
        return self.table.forwards[self.table.state(state).forward or ""].model

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
                self.residents.admit(number, _line(before, member), _line(done.columns, member))
            return
        if event in self.table.codes or event == life_cycle.FIRST:
            self._follow(event, requests, before, done)
        elif event == life_cycle.CHUNK:
            self._leave_pages(event, requests, done)
        elif event == life_cycle.HALT:
            for number, emitted in zip(requests.tolist(), done.columns["emitted"].tolist(), strict=True):
                # One that ended by itself is forgotten already; its text is the session's to cut.
                if number in self.requests:
                    self.requests[number].halt(emitted)
        if event in (life_cycle.PREEMPT, life_cycle.ABORT, life_cycle.HALT):
            for number in requests.tolist():
                self.residents.leave(number, known=event == life_cycle.PREEMPT)

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
        self._leave_pages(event, requests, done)
        for number in requests[ended].tolist():
            self.residents.leave(number, known=False)

    def _leave_pages(self, event: str, requests: Numbers, done: Step) -> None:
        """Leave the pages that an event has filled to requests that come later."""
        if self.prefixes is not None:
            self.prefixes.follow(self.table, event, requests, done.columns)

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
        self._carry_out()
        return int(self.state.free_count)

    def held_pages(self, request: int) -> int:
        """Count the pages that a request holds on the device; waits for the device."""
        self._carry_out()
        line = self.residents.lines.get(request)
        return 0 if line is None else int(self.state.held[line])


def _line(columns: Columns, member: int) -> dict[str, int]:
    return {name: int(values[member]) for name, values in columns.items()}


__all__ = ["WAIT", "DeviceDiverged", "DeviceRunner", "Ticket"]
