"""The pool's free pages in the order in which they are taken, so that a preempted request finds those that are left.

An engine with a prefix cache keeps what a page held until the page is taken again, the longest free one first; of a
request that was preempted the last pages go first (vLLM's block pool). The queue is a list of runs of pages: whose they
were, and how many; runs of nobody's pages beside each other are one.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers types, takes plain arguments

from __future__ import annotations

from fsm_spec.jit import jit

OWNER, PAGES = range(2)
NOBODY = -1


@jit(sources=(__file__,))
def give(freed, runs, owner, pages):
    """Put pages at the end; `freed` int64 [most, 2] holds `runs` runs; give the number of runs."""
    if pages <= 0:
        return runs
    if owner == NOBODY and runs > 0 and freed[runs - 1, OWNER] == NOBODY:
        freed[runs - 1, PAGES] += pages
        return runs
    freed[runs, OWNER], freed[runs, PAGES] = owner, pages
    return runs + 1


@jit(sources=(__file__,))
def take(freed, runs, pages):
    """Take pages from the front, where the longest free ones are; give the number of runs."""
    gone = 0
    while pages > 0 and gone < runs:
        part = min(pages, freed[gone, PAGES])
        freed[gone, PAGES] -= part
        pages -= part
        if freed[gone, PAGES] == 0:
            gone += 1
    if gone:
        for run in range(runs - gone):
            freed[run, OWNER], freed[run, PAGES] = freed[run + gone, OWNER], freed[run + gone, PAGES]
    return runs - gone


@jit(sources=(__file__,))
def left(freed, runs, owner):
    """Give how many leading pages of a request are still there."""
    for run in range(runs):
        if freed[run, OWNER] == owner:
            return freed[run, PAGES]
    return 0


@jit(sources=(__file__,))
def recall(freed, runs, owner, pages):
    """Take the first `pages` of a request back, and let go of the others; give the number of runs."""
    for run in range(runs):
        if freed[run, OWNER] == owner:
            freed[run, OWNER] = NOBODY
            freed[run, PAGES] -= pages
    return _joined(freed, runs)


@jit(sources=(__file__,))
def _joined(freed, runs):
    """Drop empty runs and join those of nobody's pages, so that there are at most two for each owner and one more."""
    kept = 0
    for run in range(runs):
        owner, pages = freed[run, OWNER], freed[run, PAGES]
        if pages > 0:
            kept = give(freed, kept, owner, pages)
    return kept
