"""The scheduler's part of a compiled iteration: pages needed, decisions, who leaves and who enters.

`decision.decide` decides, compiled; around it stands what `policy.plan` and `engine.Engine` do with arrays. `places.py`
names the places in the arrays of a run.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers types, takes plain arguments

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsm_spec import decision
from fsm_spec.checker.rounds import decide
from fsm_spec.jit import jit
from fsm_spec.simulator import places as p
from fsm_spec.simulator.free_queue import NOBODY, give, left, recall, take

SOURCES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("run_plan", "free_queue", "places"))
PREEMPTED, RUNS, WAITS = decision.PREEMPTED, decision.RUNS, decision.WAITS


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def plan(step, world, states, cells, log, queue, returned, freed):
    """Decide and carry out one iteration's moves; give how many requests run and how many prefill a chunk."""
    world[p.PREEMPTED_NOW] = world[p.ADMITTED_NOW] = 0
    waiting = world[p.RETURNED] + world[p.NEXT] - world[p.FRESH]
    total, all_run = _needs(world, states, cells)
    live = world[p.LIVE]
    if waiting == 0 and all_run and total <= world[p.POOL_PAGES]:
        if world[p.RECALLS]:
            _follow(world, cells, freed, p.NEED)
        for i in range(live):
            cells[p.PAGES, i] = cells[p.NEED, i]
            cells[p.ACTION, i] = RUNS
            cells[p.CHUNK, i] = 0
        return live, 0
    queued = _queued(world, log, queue, returned, freed)
    admitted = _decided(world, states, cells, log, queue, queued)
    if world[p.RECALLS]:
        _remember(world, cells, freed)
        _follow(world, cells, freed, p.OWNED)
    for i in range(live):
        cells[p.PAGES, i] = cells[p.OWNED, i]
    _preempt(step, world, cells, log, returned)
    for index in range(admitted):
        _admit(step, world, cells, log, returned, freed, queue[index, 0], cells[p.ADMIT_TOKENS, index])
    running, chunks = 0, 0
    for i in range(world[p.LIVE]):
        running += cells[p.ACTION, i] == RUNS
        chunks += cells[p.CHUNK, i] > 0
    return running, chunks


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _needs(world, states, cells):
    """Count the pages that each live request needs; give their sum, and whether all are at a round point."""
    total = 0
    all_run = True
    size = world[p.PAGE_SIZE]
    for i in range(world[p.LIVE]):
        state = cells[p.STATE_OF, i]
        pages = cells[p.PAGES, i]
        if states[state, p.ROUND]:
            slots = cells[p.KV, i] + states[state, p.AHEAD]
            # A product is a tenth of a division, and most rounds stay within their pages.
            if slots > pages * size or slots <= (pages - 1) * size:
                pages = -(-slots // size)
        else:
            all_run = False
        cells[p.NEED, i] = pages
        total += pages
    return total, all_run


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _queued(world, log, queue, returned, freed):
    """List the head of the queue: preempted requests are older than all that never ran."""
    again = world[p.RETURNED]
    if world[p.RECALLS]:
        for index in range(again):
            _find(world, log, freed, returned[index])
    count = again + min(world[p.NEXT] - world[p.FRESH], world[p.QUEUE_SEEN])
    for index in range(count):
        row = (returned[index] if index < again else world[p.FRESH] + index - again) & world[p.WINDOW]
        queue[index, 0] = log[p.TAKE, row]
        queue[index, 1] = log[p.LONGEST, row]
        queue[index, 2] = log[p.FILL, row] - log[p.HIT, row]
    return count


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _decided(world, states, cells, log, queue, queued):
    """Let the policy decide; give how many of the queue it admits."""
    live = world[p.LIVE]
    promised = np.int64(0)
    for i in range(live):
        state, row = cells[p.STATE_OF, i], cells[p.REQUEST, i] & world[p.WINDOW]
        cells[p.RUNNING, i] = states[state, p.ROUND]
        cells[p.BUDGET_ROWS, i] = states[state, p.BLOCK_ROWS]
        cells[p.LEFT, i] = log[p.FILL, row] - cells[p.KV, i] if state == world[p.PREFILL] else 0
        cells[p.ACTION, i] = WAITS
        cells[p.CHUNK, i] = 0
        promised += log[p.LONGEST, row]
    for index in range(queued):
        cells[p.ADMIT_TOKENS, index] = 0
    return decide(
        world[p.ADMISSION],
        world[p.MIXED],
        world[p.BUDGET],
        world[p.MAX_RUNNING],
        world[p.POOL_PAGES],
        world[p.GROW],
        promised,
        cells[p.RUNNING, :live],
        cells[p.PAGES, :live],
        cells[p.NEED, :live],
        cells[p.LEFT, :live],
        cells[p.BUDGET_ROWS, :live],
        queue[:queued],
        cells[p.OWNED, :live],
        cells[p.ACTION, :live],
        cells[p.CHUNK, :live],
        cells[p.ADMIT_TOKENS, :queued],
    )


# Free pages that still hold what a preempted request computed ------------------------------------------------------


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _remember(world, cells, freed):
    """Give the pages of those who are preempted back: full ones can be found again, the last one goes first."""
    for i in range(world[p.LIVE]):
        if cells[p.ACTION, i] == PREEMPTED:
            full = min(cells[p.PAGES, i], cells[p.KV, i] // world[p.PAGE_SIZE])
            runs = give(freed, world[p.RUNS_FREE], NOBODY, cells[p.PAGES, i] - full)
            world[p.RUNS_FREE] = give(freed, runs, cells[p.REQUEST, i], full)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _follow(world, cells, freed, wanted):
    """Take the pages by which requests grow, and give those by which they shrink; `wanted` is a row of `cells`."""
    more = fewer = 0
    for i in range(world[p.LIVE]):
        if cells[p.ACTION, i] != PREEMPTED:
            change = cells[wanted, i] - cells[p.PAGES, i]
            more += max(0, change)
            fewer += max(0, -change)
    world[p.RUNS_FREE] = give(freed, world[p.RUNS_FREE], NOBODY, fewer)
    world[p.RUNS_FREE] = take(freed, world[p.RUNS_FREE], more)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _find(world, log, freed, request):
    """Note how many slots of a preempted request are still there: full pages, and never the whole text."""
    row, size = request & world[p.WINDOW], world[p.PAGE_SIZE]
    pages = min(left(freed, world[p.RUNS_FREE], request), (log[p.FILL, row] - 1) // size)
    log[p.HIT, row] = max(0, pages) * size


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _preempt(step, world, cells, log, returned):
    """Let requests give their pages back and wait again, before all that never ran."""
    count = 0
    for i in range(world[p.LIVE]):
        if cells[p.ACTION, i] == PREEMPTED:
            cells[p.AT, count] = i
            count += 1
    if count == 0:
        return
    for place in range(count):
        world[p.RECOMPUTED] += cells[p.KV, cells[p.AT, place]]
    step(world[p.ON_PREEMPT], 0, count, cells)
    step(world[p.FILL_OF], 0, count, cells)
    for place in range(count):
        i = cells[p.AT, place]
        request = cells[p.REQUEST, i]
        row = request & world[p.WINDOW]
        log[p.PREEMPTIONS, row] += 1
        log[p.HIT, row] = log[p.LAST, row] = 0
        log[p.FILL, row] = cells[world[p.RESULTS], i]
        log[p.TAKE, row] = -(-log[p.FILL, row] // world[p.PAGE_SIZE])
        where = world[p.RETURNED]
        while where > 0 and returned[where - 1] > request:
            returned[where] = returned[where - 1]
            where -= 1
        returned[where] = request
        world[p.RETURNED] += 1
    world[p.PREEMPTED_NOW] = count
    remove(world, cells, p.ACTION, PREEMPTED)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def remove(world, cells, row, value):
    """Close the places of all live requests with this value in a row."""
    kept = 0
    for i in range(world[p.LIVE]):
        if cells[row, i] == value:
            continue
        if kept != i:
            for each in range(p.REQUEST, world[p.ARGS]):
                cells[each, kept] = cells[each, i]
        kept += 1
    world[p.LIVE] = kept


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _admit(step, world, cells, log, returned, freed, pages, tokens):
    """Give the first waiting request its place among the live ones, its pages and its first chunk."""
    fresh = world[p.RETURNED] == 0
    if fresh:
        request = world[p.FRESH]
        world[p.FRESH] += 1
    else:
        request = returned[0]
        world[p.RETURNED] -= 1
        for index in range(world[p.RETURNED]):
            returned[index] = returned[index + 1]
    i = world[p.LIVE]
    while i > 0 and cells[p.REQUEST, i - 1] > request:
        for each in range(p.REQUEST, world[p.ARGS]):
            cells[each, i] = cells[each, i - 1]
        i -= 1
    for each in range(p.REQUEST, world[p.ARGS]):
        cells[each, i] = 0
    row = request & world[p.WINDOW]
    if world[p.RECALLS]:
        if not fresh:
            # Who grew in this iteration may have taken some since the queue was listed.
            _find(world, log, freed, request)
            found = log[p.HIT, row] // world[p.PAGE_SIZE]
            world[p.HIT_SLOTS] += log[p.HIT, row]
            world[p.RUNS_FREE] = recall(freed, world[p.RUNS_FREE], request, found)
            world[p.RUNS_FREE] = take(freed, world[p.RUNS_FREE], pages - found)
        else:
            world[p.RUNS_FREE] = take(freed, world[p.RUNS_FREE], pages)
    cells[p.REQUEST, i] = request
    cells[p.PAGES, i] = pages
    cells[p.ACTION, i] = WAITS
    cells[p.CHUNK, i] = tokens
    cells[p.STATE_OF, i] = world[p.WAIT]
    cells[p.PROMPT, i] = log[p.PROMPT_TOKENS, row]
    cells[p.LIMIT, i] = log[p.OUTPUT_TOKENS, row]
    cells[p.EMITTED, i] = log[p.EMITTED_TOKENS, row]
    cells[world[p.ARGS], i] = log[p.HIT, row]  # slots that a prefix cache or another replica gives
    cells[p.AT, 0] = i
    step(world[p.ON_ADMIT], 0, 1, cells)
    world[p.LIVE] += 1
    world[p.ADMITTED_NOW] += 1
    if log[p.ADMITTED_NS, row] < 0:
        log[p.ADMITTED_NS, row] = world[p.NOW_NS]
