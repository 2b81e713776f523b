"""The launches of a compiled iteration: rows counted and priced, outcomes drawn, the table stepped, tokens counted.

This is what `engine.Engine`, `backend.SimulatedBackend` and `work.WorkCounter` do with arrays. `places.py` names the
places in the arrays of a run.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, PLR0917 - numba infers types, takes plain arguments

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsm_spec import decision
from fsm_spec.jit import compiled, jit
from fsm_spec.simulator import draws, roofline
from fsm_spec.simulator import places as p
from fsm_spec.simulator.run_record import record

SOURCES = tuple(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("run_launch", "run_record", "places", "draws", "roofline")
)
RUNS, WAITS = decision.RUNS, decision.WAITS

mix = compiled(draws.mix, "mix", sources=SOURCES)
number = compiled(draws.number, "number", sources=SOURCES, mix=mix)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def launch(
    step, world, states, cells, log, segments, visible, drawing, leads, survival, starts, work, constants, curves,
    parts, known, usage, dwell, line, levels, bound_ns, running, chunks,
):  # fmt: skip
    """Launch until every running request is back at a round point or at its end; give the number of launches."""
    launches = 0
    world[p.DEVICE_NS] = world[p.SEQUENCES] = world[p.FIRSTS] = 0
    while running or chunks:
        first, last, any_rows = _grouped(world, states, cells)
        # Chunks ride with the first launch that reads the weights anyway.
        ride = chunks > 0 and (running == 0 or any_rows)
        _count(step, world, states, cells, log, segments, visible, work, first, last, ride)
        record(world, states, cells, dwell, line, levels, bound_ns, world[p.NOW_NS] + world[p.DEVICE_NS])
        # The n-th launch of an iteration is mostly the n-th of the one before, a little later.
        place = min(launches, len(parts) - 1)
        launches += 1
        ns = roofline.device_ns_again(work, constants, curves, parts[place], known[place])
        if ns:
            roofline.use(parts[place], usage, bound_ns)
        world[p.DEVICE_NS] += ns
        world[p.BUSY_NS] += ns
        world[p.SEQUENCES] = max(world[p.SEQUENCES], work[roofline.REQUESTS])
        for state in range(first, last):
            if states[state, p.TO] > states[state, p.FROM]:
                _draw(world, states, cells, log, drawing, survival, starts, state)
                step(states[state, p.EVENT], states[state, p.FROM], states[state, p.TO], cells)
                _settle(world, states, cells, log, leads, state)
        if ride:
            _prefill(step, world, cells, log)
            chunks = 0
        running = 0
        for i in range(world[p.LIVE]):
            if cells[p.ACTION, i] == RUNS:
                if states[cells[p.STATE_OF, i], p.MID_ROUND]:
                    running += 1
                else:
                    cells[p.ACTION, i] = WAITS
    return launches


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _grouped(world, states, cells):
    """Part the running requests by state in row AT; give the range of states, and whether any has rows."""
    place, first, last = 0, len(states), 0
    for i in range(world[p.LIVE]):
        if cells[p.ACTION, i] == RUNS:
            cells[p.AT, place] = i
            place += 1
            state = cells[p.STATE_OF, i]
            first, last = min(first, state), max(last, state + 1)
    if last - first == 1:
        states[first, p.FROM], states[first, p.TO] = 0, place
        return first, last, states[first, p.HAS_ROWS] > 0
    place, any_rows = 0, False
    for state in range(first, last):
        states[state, p.FROM] = place
        for i in range(world[p.LIVE]):
            if cells[p.ACTION, i] == RUNS and cells[p.STATE_OF, i] == state:
                cells[p.AT, place] = i
                place += 1
        states[state, p.TO] = place
        any_rows = any_rows or (place > states[state, p.FROM] and states[state, p.HAS_ROWS] > 0)
    return first, last, any_rows


# Work --------------------------------------------------------------------------------------------------------------


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _count(step, world, states, cells, log, segments, visible, work, first, last, ride):
    """Count the work and the slots in flight of one launch."""
    for count in range(len(work)):
        work[count] = 0
    world[p.KEEP] = world[p.PROVISIONAL] = world[p.SCRATCH] = 0
    if ride:
        for i in range(world[p.LIVE]):
            tokens = cells[p.CHUNK, i]
            if tokens > 0:
                start = cells[p.KV, i]
                work[roofline.REQUESTS] += 1
                work[roofline.ROWS] += tokens
                work[roofline.LOGITS_ROWS] += (
                    start + tokens == log[p.FILL, cells[p.REQUEST, i] & world[p.WINDOW]]
                )
                work[roofline.CONTEXT_TOKENS] += start
                work[roofline.ATTENTION_PAIRS] += tokens * start + tokens * (tokens + 1) // 2
        work[roofline.SAMPLED_ROWS] = work[roofline.LOGITS_ROWS]
        work[roofline.PREFILL_ROWS] = work[roofline.ROWS]
        work[roofline.PREFILL_CONTEXT] = work[roofline.CONTEXT_TOKENS]
        work[roofline.PREFILL_PAIRS] = work[roofline.ATTENTION_PAIRS]
        world[p.KEEP] = work[roofline.ROWS]
    for state in range(first, last):
        begin, end = states[state, p.FROM], states[state, p.TO]
        if end == begin:
            continue
        if states[state, p.QUERY] >= 0:
            step(states[state, p.QUERY], begin, end, cells)
        if states[state, p.DRAFTS]:
            _count_drafting(states, cells, segments, work, state)
        elif states[state, p.HAS_ROWS]:
            _count_group(world, states, cells, segments, visible, work, state)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _count_group(world, states, cells, segments, visible, work, state):
    """Count a group whose forward runs on the target."""
    if states[state, p.CONSTANT]:
        _count_equal(world, states, cells, work, state)
    else:
        for place in range(states[state, p.FROM], states[state, p.TO]):
            _count_block(world, states, cells, segments, visible, work, state, cells[p.AT, place])


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _count_drafting(states, cells, segments, work, state):
    """Count the live rows of a group whose forward runs on a draft model, and the context that they read."""
    for place in range(states[state, p.FROM], states[state, p.TO]):
        i = cells[p.AT, place]
        rows = states[state, p.ROWS]
        if not states[state, p.CONSTANT]:
            for index in range(states[state, p.SEGMENTS]):
                rows += cells[segments[state, index, p.COUNT_AT], i]
        if rows > 0:
            work[roofline.DRAFTING_ROWS] += rows
            work[roofline.DRAFTING_CONTEXT] += cells[p.KV, i]


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _count_equal(world, states, cells, work, state):
    """Count a group whose blocks are all alike."""
    rows = states[state, p.ROWS]
    if rows == 0:
        return
    kv = 0
    for place in range(states[state, p.FROM], states[state, p.TO]):
        kv += cells[p.KV, cells[p.AT, place]]
    count = states[state, p.TO] - states[state, p.FROM]
    work[roofline.REQUESTS] += count
    work[roofline.ROWS] += count * rows
    work[roofline.LOGITS_ROWS] += count * states[state, p.LOGITS]
    work[roofline.ADAPTER_ROWS] += count * states[state, p.ADAPTER]
    work[roofline.SAMPLED_ROWS] += count * states[state, p.SAMPLED]
    work[roofline.CONTEXT_TOKENS] += kv
    work[roofline.ATTENTION_PAIRS] += kv * rows + count * states[state, p.PAIRS]
    world[p.KEEP] += count * states[state, p.KEPT]
    world[p.PROVISIONAL] += count * states[state, p.JUDGED]
    world[p.SCRATCH] += count * states[state, p.SCRATCHED]


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _count_block(world, states, cells, segments, visible, work, state, i):
    """Count the live rows of one request's block."""
    rows = 0
    for index in range(states[state, p.SEGMENTS]):
        rows += cells[segments[state, index, p.COUNT_AT], i]
    if rows == 0:
        return
    for index in range(states[state, p.SEGMENTS]):
        segment = segments[state, index]
        count = cells[segment[p.COUNT_AT], i]
        work[roofline.LOGITS_ROWS] += count * segment[p.IN_LOGITS]
        work[roofline.ADAPTER_ROWS] += count * segment[p.IN_ADAPTER]
        work[roofline.SAMPLED_ROWS] += count * segment[p.IN_SAMPLED]
        world[p.KEEP + segment[p.KIND]] += count
    shape = states[state, p.SHAPE]
    if shape == p.CAUSAL:
        pairs = rows * (rows + 1) // 2
    elif shape == p.FULL:
        pairs = rows * rows
    else:
        pairs = pairs_of(states, cells, segments, visible, state, i)
    kv = cells[p.KV, i]
    work[roofline.REQUESTS] += 1
    work[roofline.ROWS] += rows
    work[roofline.CONTEXT_TOKENS] += kv
    work[roofline.ATTENTION_PAIRS] += kv * rows + pairs


@jit(sources=SOURCES, no_cfunc_wrapper=True)
def pairs_of(states, cells, segments, visible, state, i):
    """Count the pairs of live rows that the mask shows; `visible` sums the mask from its first row and column on."""
    pairs = 0
    size, base = states[state, p.MASK_SIZE], states[state, p.MASK]
    for index in range(states[state, p.SEGMENTS]):
        top = segments[state, index, p.FIRST_ROW]
        above, below = base + top * size, base + (top + cells[segments[state, index, p.COUNT_AT], i]) * size
        for other in range(states[state, p.SEGMENTS]):
            left = segments[state, other, p.FIRST_ROW]
            right = left + cells[segments[state, other, p.COUNT_AT], i]
            pairs += (
                visible[below + right]
                - visible[above + right]
                - visible[below + left]
                + visible[above + left]
            )
    return pairs


# Outcomes ----------------------------------------------------------------------------------------------------------


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _draw(world, states, cells, log, drawing, survival, starts, state):
    """Draw what the operators of a group find, and count rounds, forwards and drafts."""
    window = world[p.WINDOW]
    begins_round, has_rows = states[state, p.ROUND], states[state, p.HAS_ROWS]
    for place in range(states[state, p.FROM], states[state, p.TO]):
        i = cells[p.AT, place]
        request = cells[p.REQUEST, i]
        row = request & window
        log[p.ROUNDS, row] += begins_round
        log[p.FORWARDS, row] += has_rows
        for index in range(states[state, p.DRAWS]):
            draw = drawing[state, index]
            law = draw[p.LAW]
            most = cells[draw[p.LARGEST_AT], i] if draw[p.LARGEST_AT] else draw[p.LARGEST]
            count = 0
            if draw[p.GRANTS]:
                group = states[state, p.TO] - states[state, p.FROM]
                total = int(survival[draw[p.TAIL] + group, 0])
                count = min(most, total // group + (place - states[state, p.FROM] < total % group))
            elif most > 0:
                turn = np.uint64(log[p.ROUNDS, row])
                drawn = number(starts[law, 0], np.uint64(request), turn, starts[law, 1], np.uint64(0))
                tail = draw[p.TAIL]
                if draw[p.VARIES]:
                    tail += p.LASTS * log[p.TEXT_KIND, row] + log[p.LAST, row]
                while count < most and survival[tail, count] > drawn:
                    count += 1
            cells[draw[p.ARGUMENT], i] = most - count if draw[p.DOWN] else count
            if draw[p.JUDGES]:
                log[p.DRAFTED, row] += most
                log[p.ACCEPTED, row] += count
                cells[p.ACCEPTED_NOW, i] = count
                if most > 0 and draw[p.VARIES]:
                    log[p.LAST, row] = p.AFTER_REJECTION if count < most else p.AFTER_ALL


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _settle(world, states, cells, log, leads, state):
    """Count emitted tokens and first tokens of a group, and take back accepted drafts behind the cut."""
    if not states[state, p.EMITS]:
        return
    tokens, window = 0, world[p.WINDOW]
    for place in range(states[state, p.FROM], states[state, p.TO]):
        i = cells[p.AT, place]
        request, emitted, transition = cells[p.REQUEST, i], cells[p.EMITTED_NOW, i], cells[p.TRANSITION, i]
        row = request & window
        log[p.EMITTED_TOKENS, row] += emitted
        tokens += emitted
        if emitted == cells[p.EMITTED, i]:
            _note_first(world, cells, request, emitted)
        # Only emitted tokens count; a row that emits no drafts has no lead.
        if transition & 1 and leads[transition >> 1] >= 0:
            lost = cells[p.ACCEPTED_NOW, i] - max(0, emitted - leads[transition >> 1])
            log[p.ACCEPTED, row] -= max(0, lost)
    world[p.TOKENS] += tokens


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _note_first(world, cells, request, emitted):
    """Note a request that has emitted its first tokens."""
    if emitted > 0:
        cells[p.FIRST_OF, world[p.FIRSTS]] = request
        world[p.FIRSTS] += 1


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _prefill(step, world, cells, log):
    """Step the requests whose chunks rode with this launch: the last chunk is the event `first`."""
    firsts, window = 0, world[p.WINDOW]
    for i in range(world[p.LIVE]):
        chunk, row = cells[p.CHUNK, i], cells[p.REQUEST, i] & window
        if chunk > 0 and cells[p.KV, i] + chunk == log[p.FILL, row]:
            cells[p.CHUNK, i] = 0
            cells[p.AT, firsts] = i
            firsts += 1
    if firsts:
        step(world[p.ON_FIRST], 0, firsts, cells)
        if world[p.FIRST_EMITS]:
            _emit_first(world, cells, log, firsts)
    rest = 0
    for i in range(world[p.LIVE]):
        if cells[p.CHUNK, i] > 0:
            cells[world[p.ARGS], i] = cells[p.CHUNK, i]
            cells[p.CHUNK, i] = 0
            cells[p.AT, rest] = i
            rest += 1
    if rest:
        step(world[p.ON_CHUNK], 0, rest, cells)


@jit(sources=SOURCES, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _emit_first(world, cells, log, count):
    """Count the tokens that prefills emitted."""
    for place in range(count):
        i = cells[p.AT, place]
        request, emitted = cells[p.REQUEST, i], cells[p.EMITTED_NOW, i]
        row = request & world[p.WINDOW]
        log[p.EMITTED_TOKENS, row] += emitted
        log[p.PREFILL_EMITTED, row] += emitted
        world[p.TOKENS] += emitted
        if emitted == cells[p.EMITTED, i]:
            _note_first(world, cells, request, emitted)
