"""What a compiled run keeps over time: levels integrated in buckets as `timeline.Timeline` does, and time by state."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers types, takes plain arguments

from __future__ import annotations

from pathlib import Path

from fsm_spec.jit import jit
from fsm_spec.simulator import places as p

SOURCES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("run_record", "places"))


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def record(world, states, cells, dwell, line, levels, bound_ns, now_ns):
    """Set the levels that hold from now on, and add tokens and time by bound since the last record."""
    integrate(world, dwell, line, levels, now_ns)
    live = world[p.LIVE]
    used = committed = 0
    for state in range(len(states)):
        dwell[1, state] = 0
    before, several = 0, 0
    for i in range(live):
        used += cells[p.PAGES, i]
        committed += cells[p.KV, i]
        # Neighbours are mostly in the same state.
        if cells[p.STATE_OF, i] == before:
            several += 1
        else:
            dwell[1, before] += several
            before, several = cells[p.STATE_OF, i], 1
    dwell[1, before] += several
    waiting = world[p.RETURNED] + world[p.NEXT] - world[p.FRESH]
    dwell[1, world[p.WAIT]] = waiting
    levels[p.CURRENT, p.USED_PAGES] = used
    levels[p.CURRENT, p.COMMITTED_SLOTS] = committed + world[p.KEEP]
    levels[p.CURRENT, p.PROVISIONAL_SLOTS] = world[p.PROVISIONAL]
    levels[p.CURRENT, p.SCRATCH_SLOTS] = world[p.SCRATCH]
    levels[p.CURRENT, p.RUNNING_REQUESTS] = live
    levels[p.CURRENT, p.WAITING_REQUESTS] = waiting
    for level in range(p.LEVELS):
        levels[p.PEAK, level] = max(levels[p.PEAK, level], levels[p.CURRENT, level])
    # What happens at the end of a bucket belongs to it: its tokens were made during it.
    line[p.LEVELS, world[p.BUCKET]] += world[p.TOKENS]
    world[p.TOKENS] = 0
    for bound in range(len(bound_ns)):
        line[p.LEVELS + 1 + bound, world[p.BUCKET]] += bound_ns[bound]
        bound_ns[bound] = 0


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def integrate(world, dwell, line, levels, now_ns):
    """Integrate the present levels up to now, over as many buckets as that takes."""
    start = world[p.LINE_NS]
    if now_ns == start:
        return
    while now_ns > world[p.WIDTH_NS] * line.shape[1]:
        _double(world, line)
    for state in range(dwell.shape[1]):
        dwell[0, state] += dwell[1, state] * (now_ns - start)
    # The present bucket is known, as a division costs as much as a level.
    while start < now_ns:
        if start == world[p.BUCKET_END_NS]:
            world[p.BUCKET] += 1
            world[p.BUCKET_END_NS] += world[p.WIDTH_NS]
        bucket, end = world[p.BUCKET], min(now_ns, world[p.BUCKET_END_NS])
        for level in range(p.LEVELS):
            line[level, bucket] += levels[p.CURRENT, level] * (end - start)
        start = end
    world[p.LINE_NS] = now_ns


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _double(world, line):
    """Merge neighbours, which halves the buckets in use."""
    half = line.shape[1] // 2
    for row in range(len(line)):
        for bucket in range(half):
            line[row, bucket] = line[row, 2 * bucket] + line[row, 2 * bucket + 1]
        for bucket in range(half, 2 * half):
            line[row, bucket] = 0
    world[p.WIDTH_NS] *= 2
    world[p.BUCKET] //= 2
    world[p.BUCKET_END_NS] = (world[p.BUCKET] + 1) * world[p.WIDTH_NS]
