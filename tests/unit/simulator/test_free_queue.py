"""The queue of free pages: page by page it is vLLM's, and preempted requests find what nobody took."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.compile import compile_table
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator import places as p
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.free_queue import NOBODY, PAGES, give, left, recall, take
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.packed_run import PackedRun
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Requests

POOL = 40
MOVES = st.lists(st.tuples(st.sampled_from("ptgr"), st.integers(0, 4), st.integers(0, 9)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(MOVES)
def test_runs_are_the_queue_page_by_page(moves: list[tuple[str, int, int]]) -> None:
    """A list with an entry a page, taken from the front, holds at every move what the runs say."""
    queue: list[int] = [NOBODY] * POOL
    freed = np.full((2 * 5 + 3, 2), NOBODY, np.int64)
    freed[0, PAGES] = POOL
    runs = 1
    for move, owner, count in moves:
        if move == "t":
            taken = min(count, len(queue))
            del queue[:taken]
            runs = take(freed, runs, taken)
        elif move == "r":
            found = queue.count(owner)
            again = min(found, count)
            # The first pages stand at the end of the request's own; those that are not wanted stay as nobody's.
            mine = [place for place, of in enumerate(queue) if of == owner]
            for place in mine[found - again :][::-1]:
                del queue[place]
            queue = [NOBODY if of == owner else of for of in queue]
            assert found == left(freed, runs, owner)
            runs = recall(freed, runs, owner, again)
        elif owner not in queue and len(queue) + count <= POOL:
            mine_or_not = owner if move == "p" else NOBODY
            queue += [mine_or_not] * count
            runs = give(freed, runs, mine_or_not, count)
        told = [int(of) for of, pages in freed[:runs].tolist() for _ in range(pages)]
        assert queue == told


def test_preempted_requests_find_pages_and_no_page_is_lost() -> None:
    """A starved run recomputes less with the queue; free pages and owned ones are the pool at the end of each look."""
    table, pool = compile_table(load("ar").spec), Pool(60, 4)
    policy, count = Policy(admit="preempt"), 40
    cost = CostModel(load_model("smollm2-135m"), load_hardware("h100"))
    requests = Requests(np.arange(count) * 100_000, np.full(count, 21), np.arange(count) % 37 + 3)
    without = Simulation(table, policy, pool, cost, requests).run()
    simulation = Simulation(table, policy, pool, cost, requests, recalls=True)
    run = simulation.replica
    assert isinstance(run, PackedRun)
    line = simulation.timeline
    while run.advance(line, most=3) == p.PAUSES:
        free = int(run.freed[: run.world[p.RUNS_FREE], PAGES].sum())
        assert pool.pages == free + int(run.cells[p.PAGES, : run.world[p.LIVE]].sum())
    assert count == run.world[p.FINISHED]
    assert 0 <= run.recomputed_slots < without.recomputed_slots
    assert run.world[p.HIT_SLOTS] % pool.page_size == 0
