"""The scheduler itself: whom an iteration admits, runs and preempts, and which prompts it cuts, over plain values.

This is the part of Python that numba compiles, so that the checker's search and the simulator run these very functions
over arrays, and that `promela/scheduler.py` translates. What leads to the values and to a plan is in `policy.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

ADMISSIONS: Final = ("reserve", "holdback", "preempt", "greedy")
RESERVE, HOLDBACK, PREEMPT, GREEDY = range(len(ADMISSIONS))
# What an iteration does with a live request.
WAITS, RUNS, PREEMPTED, BLOCKED = range(4)


def admits(
    admission: int, live: int, used: int, take: int, promised: int, grow: int, pool_pages: int
) -> bool:
    """Decide one admission: `promised` pages are all longest cases with the newcomer's, `grow` a round's growth."""
    if admission == RESERVE:
        return promised <= pool_pages
    room = grow if admission == HOLDBACK and live > 0 else 0
    return used + take + room <= pool_pages


def decide(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - numba compiles one plain function
    admission: int,
    mixed: bool,  # noqa: FBT001 - numba takes no keyword-only arguments
    budget: int,
    max_running: int,
    pool_pages: int,
    grow: int,
    promised: int,
    running: Sequence[bool],
    pages: Sequence[int],
    need: Sequence[int],
    left: Sequence[int],
    rows: Sequence[int],
    queue: Sequence[tuple[int, int, int]],
    owned: MutableSequence[int],
    actions: MutableSequence[int],
    tokens: MutableSequence[int],
    admit_tokens: MutableSequence[int],
) -> int:
    """Take the decisions of `policy.plan` over plain sequences; give how many of the queue are admitted.

    This is the scheduler itself, in the part of Python that numba compiles, so that the checker's search and the
    simulator run this very function over arrays.
    In: `admission` (index into ADMISSIONS); by live request, oldest first, the `pages` it owns, what it may `need`
    for the next round, the `left` tokens to prefill and the `rows` of a round; `queue` as `policy.plan` makes it.
    Out: `owned` pages, `actions`, `tokens` of each chunk, `admit_tokens` of each newcomer's first chunk.
    """
    live = len(need)
    # Pages above a round's need return before any are taken; the oldest takes first, the youngest gives back.
    used = 0
    for index in range(live):
        owned[index] = min(pages[index], need[index])
        used += owned[index]
    youngest = live - 1
    stalled = False
    for index in range(live):
        if index > youngest:
            break
        while owned[index] < need[index] and need[index] - owned[index] > pool_pages - used:
            if admission == GREEDY or youngest < index:
                break
            used -= owned[youngest]
            owned[youngest] = 0
            actions[youngest] = PREEMPTED
            stalled = True
            youngest -= 1
        if actions[index] == PREEMPTED:
            break
        if need[index] - owned[index] > pool_pages - used:
            actions[index] = BLOCKED
            stalled = True
            continue
        used += need[index] - owned[index]
        owned[index] = need[index]
        if running[index]:
            actions[index] = RUNS
            if mixed:
                budget -= rows[index]
    # Prompts of admitted requests, oldest first, within the token budget.
    prefills = False
    for index in range(youngest + 1):
        if left[index] > 0 and budget > 0:
            tokens[index] = min(left[index], budget)
            budget -= tokens[index]
            prefills = True
    admitted = 0
    # A newcomer beside a preemption would take the pages that were just given back; nobody overtakes.
    while not stalled and admitted < len(queue):
        take, longest, fill = queue[admitted]
        # A request that is done at once has no longest case, and holds nothing.
        if longest > 0:
            if live >= max_running:
                break
            promised += longest
            if not admits(admission, live, used, take, promised, grow, pool_pages):
                break
            admit_tokens[admitted] = max(0, min(fill, budget))
            budget -= admit_tokens[admitted]
            prefills = prefills or admit_tokens[admitted] > 0
            used += take
            live += 1
        admitted += 1
    if not mixed and prefills:
        # Prefill alone runs now; decode rows wait and keep what they own, or were just given.
        for index in range(len(need)):
            if actions[index] == RUNS:
                actions[index] = WAITS
    return admitted
