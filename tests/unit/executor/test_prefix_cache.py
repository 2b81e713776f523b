"""The executor's prefix cache against a plain reference: what every page holds, and who finds it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.compile import compile_table
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.page_holders import CachedPages
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.prefix_cache import counted_before

PAGE, PAGES = 2, 9


class Mix:
    """Drive allocator and cache as engine and runner do, and note in plain lists what each page holds."""

    def __init__(self) -> None:
        self.allocator = PageAllocator(PAGES, PAGE)
        self.requests: dict[int, Request] = {}
        self.cache = PrefixCache(compile_table(load("ar").spec), self.allocator, self.requests, "tests")
        self.texts: dict[int, tuple[int, ...]] = {}
        self.live: list[int] = []
        # All text up to its end, by page that is full; it stays until the page is handed out anew.
        self.holds: dict[int, tuple[int, ...]] = {}

    def admit(self, text: Sequence[int]) -> None:
        """Admit a new request as far as there is room: it prefills what it did not find."""
        number = len(self.requests)
        self.requests[number] = Request(text, 100)
        self.texts[number] = tuple(text)
        self.start(number)

    def start(self, number: int) -> None:
        """Start a request, new or preempted."""
        text = self.texts[number]
        found = self.cache.find(number)
        assert found == self.expected(text)
        hit = found[: (len(text) - 1) // PAGE]
        unheld = sum(not self.cache.held(page) for page in hit)
        total = -(-(len(text) + 1) // PAGE)
        if total - len(hit) > self.allocator.free - unheld:
            return
        self.cache.hold(number, hit)
        self.resize(number, total)
        self.live.append(number)
        self.write(number, len(hit) * PAGE, len(text))

    def expected(self, text: tuple[int, ...]) -> list[int]:
        """Find the front pages of a text among all that are full, by comparing texts."""
        pages = []
        for end in range(PAGE, len(text) + 1, PAGE):
            same = [page for page, held in self.holds.items() if held == text[:end]]
            if not same:
                break
            pages += same
        return pages

    def resize(self, number: int, pages: int) -> None:
        """Give a request pages; what they held is gone."""
        before = self.allocator.block_table(number)
        self.allocator.resize(number, pages)
        for page in self.allocator.block_table(number)[len(before) :]:
            self.holds.pop(page, None)
        named = {page for page in self.holds if not self.cached(page)}
        for page in named:
            del self.holds[page]

    def cached(self, page: int) -> bool:
        """Tell whether a page is the cache's: held by somebody, or resting."""
        return self.cache.held(page) or page in set(self.allocator.cached)

    def write(self, number: int, start: int, stop: int) -> None:
        """Write KV of a text's slots start:stop; full pages are left to others."""
        table = self.allocator.block_table(number)
        for page in {table[slot // PAGE] for slot in range(start, stop)}:
            assert self.allocator.holders(page) == 1, "a page with several holders is written"
            assert page not in self.holds, "a page that others may find is written"
        self.cache.enter(number, stop // PAGE)
        for place, page in enumerate(self.allocator.block_table(number)[: stop // PAGE]):
            self.holds.setdefault(page, self.texts[number][: (place + 1) * PAGE])

    def grow(self, number: int, token: int) -> None:
        """Emit a token, if there is a page for it."""
        text = self.texts[number]
        try:
            self.resize(number, -(-(len(text) + 2) // PAGE))
        except PoolExhausted:
            return
        self.texts[number] = (*text, token)
        self.requests[number].append(np.array([token]))
        self.write(number, len(text), len(text) + 1)

    def leave(self, number: int) -> None:
        """End or preempt a request."""
        self.live.remove(number)
        self.cache.leave(number)
        self.allocator.release(number)

    def check(self) -> None:
        """Every page below a request's committed slots holds its text; the books balance; counts add up."""
        self.allocator.check()
        tables = {number: self.allocator.block_table(number) for number in self.live}
        for number, table in tables.items():
            text = self.texts[number]
            for place in range(len(text) // PAGE):
                assert text[: (place + 1) * PAGE] == self.holds[table[place]]
        counted = counted_before(self.cache.common(number) for number in self.live)
        distinct = {page for table in tables.values() for page in table}
        assert sum(map(len, tables.values())) - sum(counted) == len(distinct)
        assert PAGES == len(distinct) + self.allocator.free


# Few tokens, so that texts often begin alike.
TOKENS = st.integers(1, 2)
STEPS = st.one_of(
    st.tuples(st.just("admit"), st.lists(TOKENS, min_size=1, max_size=7)),
    st.tuples(st.just("grow"), st.integers(0, 5), TOKENS),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("preempt"), st.integers(0, 5)),
    st.tuples(st.just("return"), st.integers(0, 5)),
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40))
def test_any_mix_finds_its_own_text_and_no_other(steps: list[tuple[object, ...]]) -> None:
    """A page under the wrong text, written while shared, or lost, shows as KV of another request."""
    mix = Mix()
    waiting: list[int] = []
    for kind, *given_ in steps:
        if kind == "admit":
            assert isinstance(given_[0], list)
            mix.admit(given_[0])
        elif kind == "return" and waiting:
            mix.start(waiting.pop())
        elif kind != "return" and mix.live:
            assert isinstance(given_[0], int)
            number = mix.live[given_[0] % len(mix.live)]
            if kind == "grow":
                assert isinstance(given_[1], int)
                mix.grow(number, given_[1])
            else:
                mix.leave(number)
                waiting += [number] if kind == "preempt" else []
        mix.check()


def test_least_recently_used_goes_first_and_fronts_go_last() -> None:
    """The front of a text is what most texts begin with; what was used again stays longer."""
    mix = Mix()
    mix.admit([1, 1, 1, 1, 2])
    mix.admit([2, 2, 2, 2, 2])
    first, second = (mix.allocator.block_table(number)[:2] for number in (0, 1))
    mix.leave(0)
    mix.leave(1)
    assert [*reversed(first), *reversed(second)] == list(mix.allocator.cached)
    mix.admit([1, 1, 1, 1, 1])
    mix.leave(2)
    assert [*reversed(second), *reversed(first)] == list(mix.allocator.cached)
    mix.resize(3, PAGES - 1)
    assert 1 == len(mix.allocator.cached)
    assert first[:1] == list(mix.allocator.cached)


def test_a_page_has_one_text_and_a_text_one_page() -> None:
    """The books say so at once, not when a wrong page is found."""
    pages = CachedPages()
    pages.enter(b"a", 1)
    for key, page in ((b"a", 2), (b"b", 1)):
        with pytest.raises(AssertionError):
            pages.enter(key, page)


def test_the_view_is_part_of_the_key() -> None:
    """The same text under other weights or draft models is another text."""
    text, table = [1, 2, 3, 4, 5], compile_table(load("ar").spec)
    request = Request(text, 1)
    keys = []
    for view in ("base", "another", "base"):
        cache = PrefixCache(table, PageAllocator(4, 2), {0: request}, view)
        request.page_keys.clear()
        keys.append(cache._keys(request, 2))
    assert keys[0] == keys[2]
    assert not set(keys[0]) & set(keys[1])


def test_a_spec_that_keeps_bidirectional_rows_is_refused() -> None:
    """The sentence says why, and how to go on without."""
    table, model = compile_table(load("sdar").spec), tiny_model()
    with pytest.raises(UserError, match=r"sdar keeps no pages .* whole block.*--no-prefix-cache"):
        Session(table, model, pool=Pool(64, 16), prefix_cache=True)


def test_prompts_that_are_scored_run_whole() -> None:
    """Log-probabilities of a prompt need the logits of each of its rows."""
    table, model = compile_table(load("ar").spec), tiny_model()
    session = Session(table, model, pool=Pool(64, 4), prefix_cache=True)
    prompt = list(range(1, 20))
    cached, scores = [], None
    for options in (Options(2), Options(2), Options(2, logprobs=1, prompt_logprobs=True)):
        number = session.add(prompt, options)
        session.run()
        cached.append(session.result(number).cached_tokens)
        scores = session.request(number).scores
    assert [0, 16, 0] == cached
    assert scores is not None
    assert len(prompt) - 1 == len(scores.prompt)
