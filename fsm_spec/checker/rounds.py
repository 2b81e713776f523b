"""Moves by the scheduler's rounds, compiled: arrivals, aborts, and every outcome of one iteration, on packed states.

A global state is one 64-bit word: a field a request, holding the code of its local state and the pages it owns, as the
scheduler hands them out a round ahead. The scheduler's own functions run inside. `packed_rounds.py` builds the arrays,
`compiled.py` searches; moves by single events are in `interleaved.py`.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912, PLR0913, PLR0915, PLR0917 - numba infers types, takes plain arguments
# ruff: noqa: PLR1714, SIM109 - and compiles comparisons to less than it makes of tuples

from __future__ import annotations

from fsm_spec import decision
from fsm_spec.checker.places import (
    ABORT,
    ABORT_FAULTS,
    ABORTED,
    ABSENT,
    ADMISSION,
    ARRIVAL_FAULTS,
    BITS,
    BUDGET,
    ENDED,
    ENDED_AS,
    FAULTS,
    FILL,
    GROW,
    LANDS,
    LANDS_ALWAYS,
    LEFT,
    LONGEST,
    MAX_RUNNING,
    MIXED,
    NEED,
    PAGE_BITS,
    PAGE_SIZE,
    POOL_BIT,
    POOL_PAGES,
    PREFILLING,
    REQUESTS,
    ROWS,
    RUNNING,
    SCRATCH_ROWS,
    SEES,
    SHOWS,
    SLOTS_BIT,
    STATUS,
    SYMMETRY,
    TAKE,
    TARGET,
    TIERS,
    USED,
    WAITING,
)
from fsm_spec.jit import compiled, jit

PREEMPTED, RUNS = decision.PREEMPTED, decision.RUNS
# Rows of `scratch`, one element a request.
(CODES, OWNED, QUEUED, LIVE, RUNNING_, PAGES_, NEED_, LEFT_, ROWS_, NEW_PAGES, ACTIONS, TOKENS, ADMIT_TOKENS, MOVER,
 OPTION, OPTION_PAGES, WHEEL) = range(SCRATCH_ROWS)  # fmt: skip


admits = compiled(decision.admits, "admits")
decide = compiled(decision.decide, "decide", admits=admits)


@jit()
def _packed(settings, scratch):
    """Pack codes and pages; with symmetry, requests that have ended lose their places."""
    requests, bits, page_bits, ended = (
        settings[REQUESTS],
        settings[BITS],
        settings[PAGE_BITS],
        settings[ENDED_AS],
    )
    symmetry = settings[SYMMETRY]
    word = 0
    place = 0
    for index in range(requests):
        code = scratch[CODES, index]
        if symmetry and code == ended:
            continue
        word |= ((code << page_bits) | scratch[OWNED, index]) << (place * bits)
        place += 1
    while place < requests:
        word |= (ended << page_bits) << (place * bits)
        place += 1
    return word


@jit()
def _code(word, index, settings):
    """Give the code of one request of a state."""
    bits = settings[BITS]
    return ((word >> (index * bits)) & ((1 << bits) - 1)) >> settings[PAGE_BITS]


@jit()
def _unpack(word, settings, scratch):
    """Write the codes and pages of a state's requests."""
    bits, page_field = settings[BITS], (1 << settings[PAGE_BITS]) - 1
    for index in range(settings[REQUESTS]):
        scratch[CODES, index] = _code(word, index, settings)
        scratch[OWNED, index] = (word >> (index * bits)) & page_field


@jit()
def _land(settings, local, scratch):
    """Let a late host see all requests as they are: those that have ended unseen go."""
    for index in range(settings[REQUESTS]):
        sees = local[scratch[CODES, index], SEES]
        # Who has not been admitted is seen as it is, and has 0 there.
        if sees:
            scratch[CODES, index] = sees
            if local[sees, STATUS] == ENDED:
                scratch[OWNED, index] = 0


@jit()
def rounds(word, settings, local, lists, options, prefills, admits_, arrivals, scratch, queue, out):
    """Write the successors of a state to `out`: arrivals, aborts, and every outcome of one iteration.

    `lists[k]` and `lists[k + 1]` bound option list k; `prefills[code, n]` and `admits_[code, n]` give the list of
    a request that prefills n tokens, now or at its admission (columns 0 of both, for a running one: its round, its
    preemption).
    Gives their number (above the length of `out`: a longer one is needed), the properties broken and those shown
    (bits), and whether requests are left that nothing can move.
    """
    requests = settings[REQUESTS]
    _unpack(word, settings, scratch)
    # Arrivals and aborts: each changes one request. The first absent one is the next to come.
    count, broken, shown = 0, 0, 0
    active = False
    for index in range(requests):
        active = active or local[scratch[CODES, index], STATUS] not in (ABSENT, ENDED)
    if settings[LANDS]:
        _land(settings, local, scratch)
    for index in range(requests):
        code, pages = scratch[CODES, index], scratch[OWNED, index]
        status = local[code, STATUS]
        if status == ENDED:
            if settings[ABORT] and _code(word, index, settings) != code:
                # It has ended before it could be given up.
                if count < len(out):
                    out[count] = _packed(settings, scratch)
                count += 1
            continue
        if status == ABSENT:
            # Who arrives takes nothing away.
            _unpack(word, settings, scratch)
        changes = len(arrivals) if status == ABSENT else settings[ABORT]
        broken |= settings[ARRIVAL_FAULTS] if status == ABSENT else changes * local[code, ABORT_FAULTS]
        for change in range(changes):
            target = arrivals[change] if status == ABSENT else local[code, ABORTED]
            if target < 0:
                continue
            scratch[CODES, index] = target
            scratch[OWNED, index] = (
                pages if local[target, STATUS] == RUNNING or local[target, STATUS] == PREFILLING else 0
            )
            if count < len(out):
                out[count] = _packed(settings, scratch)
            count += 1
        scratch[CODES, index], scratch[OWNED, index] = code, pages
        if status == ABSENT:
            break
    if not active:
        return count, broken, 0, False
    _unpack(word, settings, scratch)
    if settings[LANDS] == LANDS_ALWAYS:
        _land(settings, local, scratch)
    moving, held = _planned(settings, local, prefills, admits_, scratch, queue)
    if held > settings[POOL_PAGES]:
        broken |= settings[POOL_BIT]
    still = False
    # Every request that moves has a list of options; the product of the lists is walked like an odometer.
    for place in range(moving):
        scratch[WHEEL, place] = lists[scratch[OPTION, place]]
    while True:
        lost = False
        for place in range(moving):
            index, at, pages = scratch[MOVER, place], scratch[WHEEL, place], scratch[OPTION_PAGES, place]
            target = options[at, TARGET]
            broken |= options[at, FAULTS]
            shown |= options[at, SHOWS]
            if target < 0:
                lost = True
                continue
            status = local[target, STATUS]
            if options[at, USED] > pages * settings[PAGE_SIZE] and status != WAITING:
                broken |= settings[SLOTS_BIT]
            scratch[CODES, index] = target
            scratch[OWNED, index] = 0 if status == ENDED or status == WAITING else pages
        if not lost:
            after = _packed(settings, scratch)
            still = still or after == word
            if count < len(out):
                out[count] = after
            count += 1
        place = moving - 1
        while place >= 0:
            scratch[WHEEL, place] += 1
            if scratch[WHEEL, place] < lists[scratch[OPTION, place] + 1]:
                break
            scratch[WHEEL, place] = lists[scratch[OPTION, place]]
            place -= 1
        if place < 0:
            return count, broken, shown, still


@jit()
def _decided(settings, local, scratch, queue):
    """Let the scheduler decide; give how many live and are admitted, the size, and whether some give pages back."""
    live, waiting, promised, running = 0, 0, 0, 0
    for index in range(settings[REQUESTS]):
        running += local[scratch[CODES, index], STATUS] == RUNNING
    # Facts and lists of the size that so many running requests get; what is not of a round is the same in all sizes.
    tier = settings[TIERS + running]
    for index in range(settings[REQUESTS]):
        code = scratch[CODES, index]
        status = local[code, STATUS]
        if status == WAITING:
            queue[waiting, 0] = local[code, TAKE]
            queue[waiting, 1] = local[code, LONGEST]
            queue[waiting, 2] = local[code, FILL]
            scratch[QUEUED, waiting] = index
            scratch[ADMIT_TOKENS, waiting] = 0
            waiting += 1
        elif status == PREFILLING or status == RUNNING:
            scratch[RUNNING_, live] = status == RUNNING
            scratch[PAGES_, live] = scratch[OWNED, index]
            scratch[NEED_, live] = local[tier + code, NEED] if status == RUNNING else scratch[OWNED, index]
            scratch[LEFT_, live] = local[code, LEFT]
            scratch[ROWS_, live] = local[tier + code, ROWS]
            scratch[ACTIONS, live] = 0
            scratch[TOKENS, live] = 0
            scratch[LIVE, live] = index
            promised += local[code, LONGEST]
            live += 1
    admitted = decide(
        settings[ADMISSION], settings[MIXED], settings[BUDGET], settings[MAX_RUNNING], settings[POOL_PAGES],
        settings[GROW], promised, scratch[RUNNING_, :live], scratch[PAGES_, :live], scratch[NEED_, :live],
        scratch[LEFT_, :live], scratch[ROWS_, :live], queue[:waiting], scratch[NEW_PAGES, :live],
        scratch[ACTIONS, :live], scratch[TOKENS, :live], scratch[ADMIT_TOKENS, :waiting],
    )  # fmt: skip
    preempts = False
    for place in range(live):
        preempts = preempts or scratch[ACTIONS, place] == PREEMPTED
    return live, admitted, tier, preempts


@jit()
def _planned(settings, local, prefills, admits_, scratch, queue):
    """Plan an iteration; give how many requests move, by which options, and the pages held meanwhile."""
    live, admitted, tier, preempts = _decided(settings, local, scratch, queue)
    if preempts and settings[LANDS]:
        _land(settings, local, scratch)
        live, admitted, tier, preempts = _decided(settings, local, scratch, queue)
    moving, held = 0, 0
    for place in range(live):
        index = scratch[LIVE, place]
        code, pages, option = scratch[CODES, index], scratch[NEW_PAGES, place], -1
        if scratch[ACTIONS, place] == PREEMPTED:
            option, pages = admits_[tier + code, 0], 0
        elif scratch[ACTIONS, place] == RUNS:
            option = prefills[tier + code, 0]
        elif scratch[TOKENS, place] > 0:
            option = prefills[tier + code, scratch[TOKENS, place]]
        held += pages
        if option < 0:
            # Nothing runs, and a late host catches up: a request that had ended unseen goes.
            code = local[code, SEES]
            scratch[CODES, index] = code
            scratch[OWNED, index] = 0 if local[code, STATUS] == ENDED else pages
            continue
        scratch[MOVER, moving], scratch[OPTION, moving], scratch[OPTION_PAGES, moving] = index, option, pages
        moving += 1
    for place in range(admitted):
        index = scratch[QUEUED, place]
        option = admits_[tier + scratch[CODES, index], scratch[ADMIT_TOKENS, place]]
        scratch[MOVER, moving], scratch[OPTION, moving], scratch[OPTION_PAGES, moving] = (
            index,
            option,
            queue[place, 0],
        )
        held += queue[place, 0]
        moving += 1
    return moving, held
