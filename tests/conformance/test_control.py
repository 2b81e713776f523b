"""Penalties, bias, grammars, `min_tokens` and log-probabilities: every spec gives what plain decoding gives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from fsm_spec.compile import compile_table
from fsm_spec.executor.control import reads_in_order
from fsm_spec.executor.generate import Options, Result, Session
from fsm_spec.executor.grammar import GrammarCompiler
from fsm_spec.executor.logprobs import TokenLogprob
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer, tokenizer_settings
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.request import Controls
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load, shipped
from fsm_spec.policy import Pool
from fsm_spec.table import Table

TOKENS = [*sorted(ByteLevel.alphabet()), "he", "<|mask|>", "<|end|>"]
MASK, END = len(TOKENS) - 2, len(TOKENS) - 1
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 2) + [3, 3],
    "tokenizer.ggml.merges": ["h e"],
}
PATTERN = "(ab|cd){2,6}(he)?[0-9]{3}"
PROMPT = "hello hello hello hello"
Tables = Callable[..., Table]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes."""
    return Tokenizer(build_tokenizer(METADATA, "tiny.gguf"), tokenizer_settings(METADATA))


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random model of that vocabulary."""
    return tiny_model(vocab=len(TOKENS), hidden=32, heads=2, kv_heads=1, seed=3)


def comparable(*claims: str) -> list[str]:
    """Name the specs that claim the output of plain decoding and predict tokens in their order."""
    tables = [compile_table(load(name).spec) for name in sorted(set(shipped()) - {"ar"})]
    return [
        each.name
        for each in tables
        if reads_in_order(each) and each.spec.lossless is not None and each.spec.lossless.claim in claims
    ]


@pytest.fixture(params=comparable("sampling", "greedy"))
def table(request: pytest.FixtureRequest, table_of: Tables) -> Table:
    """Return the table of a spec that drafts."""
    return table_of(str(request.param))


GREEDY: dict[str, Options] = {
    "nothing": Options(max_tokens=30, stop_ids=()),
    "penalties": Options(40, stop_ids=(), controls=Controls(Adjustment(1.5, 0.7, 1.0))),
    "bias": Options(40, stop_ids=(), controls=Controls(Adjustment(0.0, 0.0, 1.7, ((7, 9.0), (9, 8.5))))),
    "min_tokens": Options(
        40, stop_ids=(END,), controls=Controls(Adjustment(bias=((END, 50.0),)), min_tokens=21)
    ),
    "scores": Options(
        40, stop_ids=(), controls=Controls(Adjustment(presence=1.0)), logprobs=2, prompt_logprobs=True
    ),
    "grammar": Options(60, stop_ids=(END,)),
}


class Crowd:
    """Run requests of several wishes together, and hold what each gave."""

    def __init__(
        self, table: Table, model: Transformer, tokenizer: Tokenizer, wishes: dict[str, Options]
    ) -> None:
        drafters = random_drafters(table, model)
        self.session = Session(table, model, tokenizer, pool=Pool(150, 4), mask_id=MASK, drafters=drafters)
        compiler = GrammarCompiler(tokenizer, len(TOKENS), [END])
        self.numbers = {}
        for name, options in wishes.items():
            if "grammar" in name:
                grammar = compiler.start(compiler.check("regex", PATTERN))
                options = replace(options, controls=Controls(grammar=grammar))  # noqa: PLW2901 -- its own automaton
            self.numbers[name] = self.session.add(tokenizer.encode(PROMPT), options)
        self.session.run()
        assert self.session.allocator.free == self.session.allocator.pages

    def result(self, name: str) -> Result:
        """Give what a request gave."""
        return self.session.result(self.numbers[name])

    @property
    def scores(self) -> list[TokenLogprob]:
        """Give all log-probabilities, the prompt's first."""
        found = self.session.request(self.numbers["scores"]).scores
        assert found is not None
        return [*found.prompt, *found.tokens]


@pytest.fixture(scope="module")
def plain(model: Transformer, tokenizer: Tokenizer) -> Crowd:
    """Return what plain decoding gives."""
    return Crowd(compile_table(load("ar").spec), model, tokenizer, GREEDY)


def test_greedy_equals_plain_decoding(
    table: Table, plain: Crowd, model: Transformer, tokenizer: Tokenizer
) -> None:
    """A wish that rows of a block took for the wrong text, or from another request, would show at once."""
    found = Crowd(table, model, tokenizer, GREEDY)
    for name in GREEDY:
        assert plain.result(name).token_ids == found.result(name).token_ids, name
        assert plain.result(name).finish_reason == found.result(name).finish_reason
    assert re.fullmatch(PATTERN, plain.result("grammar").text)
    assert len(tokenizer.encode(PROMPT)) - 1 + 40 == len(plain.scores) == len(found.scores)
    for mine, theirs in zip(plain.scores, found.scores, strict=True):
        assert mine.token == theirs.token
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def test_wishes_are_heard(plain: Crowd) -> None:
    """A test of equal answers would pass if nobody listened."""
    texts = {name: plain.result(name).text for name in GREEDY}
    assert len(GREEDY) == len(set(texts.values()))
    assert 22 == len(plain.result("min_tokens").token_ids)
    counts = Counter(plain.result("penalties").token_ids)
    assert max(counts.values()) < max(Counter(plain.result("nothing").token_ids).values())


@pytest.mark.parametrize("table", comparable("sampling"), indirect=True)
def test_sampling_stays_within_the_grammar(table: Table, model: Transformer, tokenizer: Tokenizer) -> None:
    """At a temperature drafts are drawn; what is emitted still matches, and is the same again."""
    options = Options(80, SamplingParams(1.3), 11, stop_ids=(END,))
    wishes = {"grammar": options, "grammar again": options}
    found = Crowd(table, model, tokenizer, wishes)
    one, two = (found.result(name).text for name in wishes)
    assert one == two
    assert re.fullmatch(PATTERN, one)
