"""The loop of a compiled run: arrivals, iterations, what they emit and finish, and the clock between them.

This is what `simulation.Simulation` does event by event. `places.py` names the places in the arrays of a run,
`packed_run.py` fills them.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0913, PLR0917 - numba infers types, takes plain arguments

from __future__ import annotations

from pathlib import Path

from fsm_spec.jit import jit
from fsm_spec.simulator import places as p
from fsm_spec.simulator import roofline
from fsm_spec.simulator.free_queue import NOBODY, give
from fsm_spec.simulator.run_launch import launch
from fsm_spec.simulator.run_plan import plan, remove
from fsm_spec.simulator.run_record import integrate, record

SOURCES = tuple(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in (
        "run_loop",
        "run_launch",
        "run_plan",
        "run_record",
        "free_queue",
        "places",
        "draws",
        "roofline",
    )
)


@jit(sources=SOURCES, no_cfunc_wrapper=True)
def advance(
    step, world, states, cells, log, queue, returned, freed, segments, visible, drawing, leads, survival, starts,
    work, constants, curves, parts, known, usage, dwell, line, levels, bound_ns, until_ns,
):  # fmt: skip
    """Run iterations that start before `until_ns`; say why it comes back.

    It comes back after `world[ITERATIONS_LEFT]`, after `world[STOP_NS]` (integrals are int64, and must not overflow),
    for more requests while the loaded ones last for another iteration, and where another tier's table must run.
    """
    while True:
        if world[p.IN_FLIGHT]:
            if world[p.END_NS] > until_ns:
                return p.WAITS_UNTIL
            world[p.NOW_NS] = world[p.END_NS]
            world[p.IN_FLIGHT] = 0
            _finish(world, cells, log)
            world[p.ITERATIONS_LEFT] -= 1
        _arrive(world, log)
        if world[p.LOADED] < world[p.REQUESTS] and world[p.LOADED] - world[p.NEXT] < world[p.MARGIN]:
            return p.LOADS
        if world[p.ITERATIONS_LEFT] <= 0 or world[p.NOW_NS] > world[p.STOP_NS]:
            return p.PAUSES
        working = world[p.LIVE] > 0 or world[p.RETURNED] > 0 or world[p.NEXT] > world[p.FRESH]
        if working and world[p.TIERED] and _resizes(world, states, cells):
            integrate(world, dwell, line, levels, world[p.NOW_NS])
            return p.RESIZES
        if working:
            running, chunks = plan(step, world, states, cells, log, queue, returned, freed)
            launches = launch(
                step, world, states, cells, log, segments, visible, drawing, leads, survival, starts, work,
                constants, curves, parts, known, usage, dwell, line, levels, bound_ns, running, chunks,
            )  # fmt: skip
            _release(world, cells, freed)
            world[p.ITERATIONS] += 1
            world[p.LAUNCHES] += launches
            if launches or world[p.ENDED] or world[p.PREEMPTED_NOW] or world[p.ADMITTED_NOW]:
                world[p.EMPTY] = 0 if launches or world[p.ENDED] else world[p.EMPTY] + 1
                if world[p.EMPTY] > world[p.MOST_EMPTY]:
                    return p.STUCK
                ns = roofline.step_ns(world[p.DEVICE_NS], world[p.SEQUENCES], constants)
                world[p.END_NS] = world[p.NOW_NS] + ns
                world[p.IN_FLIGHT] = 1
                continue
        world[p.KEEP] = world[p.PROVISIONAL] = world[p.SCRATCH] = 0
        record(world, states, cells, dwell, line, levels, bound_ns, world[p.NOW_NS])
        arrival_ns = _next_arrival(world, log)
        if arrival_ns < 0:
            return p.STUCK if working else p.ENDS
        if arrival_ns > until_ns:
            return p.WAITS_UNTIL
        world[p.NOW_NS] = arrival_ns


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _resizes(world, states, cells):
    """Tell whether the requests at a round point are too few or too many for the table that runs."""
    count = 0
    for i in range(world[p.LIVE]):
        count += states[cells[p.STATE_OF, i], p.ROUND]
    world[p.AT_ROUND] = count
    return count < world[p.FEWEST] or count > world[p.MOST]


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _arrive(world, log):
    """Queue the requests that have arrived by now."""
    while 0 <= _next_arrival(world, log) <= world[p.NOW_NS]:
        world[p.NEXT] += 1


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _next_arrival(world, log):
    """Give the time of the next request that arrives by the clock; less than 0 if there is none."""
    if world[p.NEXT] == world[p.LOADED]:
        return -1
    return log[p.ARRIVAL, world[p.NEXT] & world[p.WINDOW]]


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _release(world, cells, freed):
    """Let ended requests go; their numbers stand in row ENDED_OF."""
    world[p.ENDED] = 0
    for i in range(world[p.LIVE]):
        if cells[p.STATE_OF, i] == world[p.END]:
            if world[p.RECALLS]:
                world[p.RUNS_FREE] = give(freed, world[p.RUNS_FREE], NOBODY, cells[p.PAGES, i])
            cells[p.ENDED_OF, world[p.ENDED]] = cells[p.REQUEST, i]
            world[p.ENDED] += 1
    if world[p.ENDED]:
        remove(world, cells, p.STATE_OF, world[p.END])


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _finish(world, cells, log):
    """Write the times of what the iteration emitted and finished; a closed loop goes on."""
    now, window = world[p.NOW_NS], world[p.WINDOW]
    for index in range(world[p.FIRSTS]):
        log[p.FIRST_TOKEN_NS, cells[p.FIRST_OF, index] & window] = now
    for index in range(world[p.ENDED]):
        log[p.FINISH_NS, cells[p.ENDED_OF, index] & window] = now
        if world[p.CONCURRENCY] and world[p.NEXT] < world[p.REQUESTS]:
            log[p.ARRIVAL, world[p.NEXT] & window] = now
            world[p.NEXT] += 1
    world[p.FINISHED] += world[p.ENDED]
    world[p.FIRSTS] = world[p.ENDED] = 0
