"""Sessions: text streams in order, ends where it should, and counts are those of the run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from fsm_spec.compile import compile_table
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.generate import Options, Session, default_mask_id, pool_for, require_children
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer, tokenizer_settings
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.steps import StepView
from fsm_spec.executor.stop_text import StopText
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

TOKENS = [*sorted(ByteLevel.alphabet()), "<|begin|>", "<|spare|>", "<|end|>"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 3) + [3] * 3,
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.bos_token_id": len(TOKENS) - 3,
    "tokenizer.ggml.eos_token_id": len(TOKENS) - 1,
}
VOCABULARY = len(TOKENS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a tokenizer of all bytes and three special tokens."""
    return Tokenizer(build_tokenizer(METADATA, "tiny.gguf"), tokenizer_settings(METADATA))


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random float64 model over that vocabulary, context 64, that prefers the printable bytes."""
    config = tiny_config(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1, context=64)
    return Transformer(config, random_weights(config, 3), torch.float64)


def table_of(name: str, **params: int) -> Table:
    """Compile a shipped spec."""
    return compile_table(load(name).spec, params)


def session(model: Transformer, tokenizer: Tokenizer | None, name: str = "ar", **more: Any) -> Session:  # noqa: ANN401
    """Return a session with room for everything."""
    return Session(table_of(name), model, tokenizer, pool=Pool(40, 8), **more)


@pytest.mark.parametrize("name", ["ar", "ngram", "isd", "uno_linear"])
def test_streamed_pieces_join_to_the_text(model: Transformer, tokenizer: Tokenizer, name: str) -> None:
    """What was streamed is the text of the result, whatever rounds cut it, and equals decoding all tokens."""
    running = session(model, tokenizer, name)
    number = running.add(tokenizer.encode("hello"), Options(30))
    pieces = list(running.stream(number))
    result = running.result(number)
    assert "".join(pieces) == result.text == tokenizer.decode(result.token_ids)
    assert ("length", 30, 5) == (result.finish_reason, len(result.token_ids), result.prompt_tokens)


def test_counts_of_a_run(model: Transformer, tokenizer: Tokenizer) -> None:
    """The first token is the prefill's; acceptance length and tokens per forward leave it out."""
    running = session(model, tokenizer, "uno_linear")
    number = running.add(tokenizer.encode("hello"), Options(21))
    running.run()
    result = running.result(number)
    assert 2 * result.rounds == result.forwards
    assert 20 / result.rounds == result.acceptance_length
    assert 20 / result.forwards == result.tokens_per_forward
    assert 20 / result.rounds >= 2


@pytest.mark.parametrize(
    ("name", "resident"),
    [("ar", False), ("ngram", False), ("isd", False), ("uno_linear", False), ("ar", True), ("isd", True)],
)
def test_numbers_that_overflow_end_their_own_request_alone(
    tokenizer: Tokenizer,
    name: str,
    resident: bool,  # noqa: FBT001 -- a parameter
) -> None:
    """A text whose logits are NaN ends with an error, at its prefill or later; who runs beside it notices nothing."""
    config = tiny_config(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1, context=64)
    sound, broken = (Transformer(config, random_weights(config, 3), torch.float64) for _ in range(2))
    alone = session(sound, tokenizer, name)
    expected = alone.add(tokenizer.encode("hello"), Options(20))
    alone.run()
    text = alone.result(expected).token_ids
    late = text[8]
    prompts = [[token] for token in range(65, 91) if token not in text]
    place = Resident(CpuPlace()) if resident else None
    running = session(broken, tokenizer, name, trace=TraceWriter([], {}), resident=place)
    broken.embedding[prompts[0][0]] = torch.nan
    faulty, healthy = (
        running.add(prompts[0], Options(20)),
        running.add(tokenizer.encode("hello"), Options(20)),
    )
    running.run()
    assert ("error", []) == (running.result(faulty).finish_reason, running.result(faulty).token_ids[1:])
    assert ("length", text) == (running.result(healthy).finish_reason, running.result(healthy).token_ids)
    broken.embedding[late] = torch.nan
    again = running.add(tokenizer.encode("hello"), Options(20))
    running.run()
    assert running.result(again).finish_reason == "error"
    assert text[: text.index(late) + 1] == running.result(again).token_ids[: text.index(late) + 1]
    assert running.pages_by_kind()["free"] == 40


def test_one_token_is_no_round(model: Transformer, tokenizer: Tokenizer) -> None:
    """A request that ends with its prefill has no rounds to divide by; one of limit 0 emits nothing."""
    running = session(model, tokenizer)
    one = running.add(tokenizer.encode("hello"), Options(1))
    none = running.add(tokenizer.encode("hello"), Options(0))
    running.run()
    assert (1, 0, None, None, "length") == _brief(running, one)
    assert (0, 0, None, None, "length") == _brief(running, none)


def _brief(running: Session, number: int) -> tuple[int, int, float | None, float | None, str]:
    result = running.result(number)
    rates = result.acceptance_length, result.tokens_per_forward
    return len(result.token_ids), result.rounds, *rates, result.finish_reason


def test_stop_token_gives_the_reason_stop(model: Transformer, tokenizer: Tokenizer) -> None:
    """A stop token within the limit is the reason; one that would come after it is not."""
    running = session(model, tokenizer)
    plain = running.add(tokenizer.encode("hello"), Options(20))
    running.run()
    tokens = running.result(plain).token_ids
    last = next(index for index, token in enumerate(tokens) if index > 3 and token not in tokens[:index])
    for name in ("ar", "isd", "uno_linear"):
        running = session(model, tokenizer, name)
        stop = Options(20, stop_ids=(tokens[last],))
        short = running.add(tokenizer.encode("hello"), stop)
        exact = running.add(tokenizer.encode("hello"), Options(last + 1, stop_ids=(tokens[last],)))
        before = running.add(tokenizer.encode("hello"), Options(last, stop_ids=(tokens[last],)))
        running.run()
        results = [running.result(number) for number in (short, exact, before)]
        assert ["stop", "stop", "length"] == [result.finish_reason for result in results]
        assert [last + 1, last + 1, last] == [len(result.token_ids) for result in results]


@pytest.mark.parametrize("name", ["ar", "isd", "uno_linear"])
def test_stop_text_ends_before_itself(model: Transformer, tokenizer: Tokenizer, name: str) -> None:
    """The text ends before a stop string, no piece of it is streamed, and the tokens end with it."""
    running = session(model, tokenizer, name)
    number = running.add(tokenizer.encode("hello"), Options(30))
    running.run()
    whole = running.result(number)
    # Three characters in the middle, so that the stop string spans tokens.
    at = next(at for at in range(5, 25) if "\ufffd" not in whole.text[at : at + 3])
    stop = whole.text[at : at + 3]
    running = session(model, tokenizer, name)
    number = running.add(tokenizer.encode("hello"), Options(30, stop=(stop, "never\n")))
    streamed = "".join(running.stream(number))
    result = running.result(number)
    assert whole.text[: whole.text.index(stop)] == streamed == result.text
    assert "stop" == result.finish_reason
    assert stop in tokenizer.decode(result.token_ids)
    assert stop not in tokenizer.decode(result.token_ids[:-1])
    assert not running.has_work
    assert running.allocator.free == running.allocator.pages


def test_stop_text_holds_back_and_lets_go() -> None:
    """What may begin a stop string waits; what turns out not to is let out; the earliest one ends the text."""
    stops = StopText(["END", "\n\n"])
    assert ("a", 1) == stops.push(["aE"])
    assert ("Eb", 2) == stops.push(["b", "E"])
    assert ("E\nc", 1) == stops.push(["\nc"])
    assert ("", 1) == stops.push(["\n"])
    assert ("", 1) == stops.push(["\nEND"])
    assert "\n\n" == stops.found
    assert ("", 0) == stops.push(["more"])
    assert "" == stops.finish()
    stops = StopText(["END"])
    assert ("a", 1) == stops.push(["aEN"])
    assert "EN" == stops.finish()


def test_stop_text_ends_with_the_piece_that_completes_a_stop_string() -> None:
    """Pieces that come together mean what they mean one by one: who is whole first wins, and the rest is not read."""
    stops = StopText(["abcde", "bc"])
    assert ("xa", 3) == stops.push(["x", "ab", "c", "de", "y"])
    assert "bc" == stops.found
    stops = StopText(["bc"], include=True)
    assert ("abc", 2) == stops.push(["ab", "cd", "e"])
    stops = StopText(["a"], unread=3)
    assert ("aa", 2) == stops.push(["a", "a"])
    assert ("ab", 3) == stops.push(["a", "b", "a", "c"])


def test_context_cuts_the_limit(model: Transformer, tokenizer: Tokenizer) -> None:
    """A run ends at the context length; a prompt that fills it is refused with both numbers."""
    running = session(model, tokenizer)
    number = running.add([5] * 60, Options(100))
    running.run()
    assert 4 == len(running.result(number).token_ids)
    with pytest.raises(UserError, match="prompt has 64 tokens and the model's context 64"):
        running.add([5] * 64, Options(1))


def test_what_cannot_run_is_refused(model: Transformer, tokenizer: Tokenizer) -> None:
    """Each refusal is one sentence, and leaves nothing behind."""
    running = session(model, tokenizer)
    with pytest.raises(UserError, match="the prompt is empty"):
        running.add([], Options(1))
    with pytest.raises(UserError, match=r"^temperature is -1"):
        running.add([1], Options(1, SamplingParams(-1.0)))
    with pytest.raises(UserError, match="mask id 999 is out of range"):
        session(model, tokenizer, mask_id=999)
    with pytest.raises(UserError, match="by the best 4 tokens, and the model has 3 to choose from"):
        require_children(table_of("uno_tree", k=4), tiny_config(vocab=4))
    with pytest.raises(PoolExhausted, match="the pool has 2"):
        Session(table_of("ar"), model, tokenizer, pool=Pool(2, 8)).add([1] * 20, Options(20))
    assert not running.has_work


def test_greedy_admission_that_blocks_is_said(model: Transformer, tokenizer: Tokenizer) -> None:
    """The policy kept for study deadlocks; that is one sentence and no endless loop."""
    running = Session(
        table_of("ar"), model, tokenizer, pool=Pool(8, 4), policy=Policy(policy="greedy", admit="greedy")
    )
    for _ in range(4):
        running.add([1, 2, 3, 4, 5, 6, 7], Options(20))
    with pytest.raises(PoolExhausted, match="all requests wait"):
        running.run()


def test_abort_and_forget(model: Transformer, tokenizer: Tokenizer) -> None:
    """An aborted request says so, and a session can drop what is over."""
    running = session(model, tokenizer)
    number = running.add(tokenizer.encode("hello"), Options(30))
    running.iterate()
    running.abort(number)
    running.abort(number)
    assert "abort" == running.result(number).finish_reason
    running.forget(number)
    assert not running.has_work


def test_smallest_pool_is_enough_and_needed(model: Transformer, tokenizer: Tokenizer) -> None:
    """The pool made for one request carries it to its end, and one page less is refused."""
    for name in ("ar", "ngram", "isd", "uno_linear", "linear_spec"):
        table = table_of(name)
        pool = pool_for(table, 5, 30, 4)
        running = Session(table, model, tokenizer, pool=pool)
        number = running.add(tokenizer.encode("hello"), Options(30))
        running.run()
        assert 30 == len(running.result(number).token_ids)
        with pytest.raises(PoolExhausted):
            Session(table, model, tokenizer, pool=Pool(pool.pages - 1, 4)).add([1] * 5, Options(30))


def test_default_mask_id(model: Transformer, tokenizer: Tokenizer) -> None:
    """The model's own; else a special token that neither starts nor ends a text; else 0."""
    config = model.config
    assert VOCABULARY - 1 == default_mask_id(config, tokenizer)
    bare = replace(config, mask_token_id=None, bos_token_id=VOCABULARY - 3, eos_token_ids=(VOCABULARY - 1,))
    assert VOCABULARY - 2 == default_mask_id(bare, tokenizer)
    assert 0 == default_mask_id(bare, None)


def test_steps_show_each_round(model: Transformer, tokenizer: Tokenizer) -> None:
    """A line says state, rows, accepted drafts, KV before and after, transition and the line of the spec."""
    records: list[dict[str, Any]] = []
    loaded = load("isd")
    table = compile_table(loaded.spec, line_of=loaded.line_of)
    running = Session(table, model, tokenizer, pool=Pool(40, 8), trace=TraceWriter(records, {}))
    running.add(tokenizer.encode("hello"), Options(4))
    running.run()
    view = StepView(running.engine.tiers, lambda _request, start, stop: f"[{start}:{stop}]")
    lines = [line for line in map(view.line, records) if line]
    assert "request event rows results KV transition line emitted" == " ".join(view.header().split())
    row = next(row for row in table.rows if row.event == "cold")
    first, cold = (" ".join(line.split()) for line in lines[1:3])
    assert re.fullmatch(r"0 first text 5 0 -> 5 prefill -> cold \d+ 1 \[0:1\]", first)
    assert f"0 cold clean 1 + masks 3 5 -> 6 cold -> verify {row.line} 1 [1:2]" == cold
    assert "a=" in lines[3]


def test_steps_of_groups_stand_below_each_other(model: Transformer, tokenizer: Tokenizer) -> None:
    """Rows of all groups count as one segment, and a cell never pushes the next column out of its place."""
    records: list[dict[str, Any]] = []
    table = compile_table(load("uno_quadratic").spec, {"b": 16})
    running = Session(table, model, tokenizer, pool=Pool(60, 8), trace=TraceWriter(records, {}))
    running.add(tokenizer.encode("hello"), Options(4))
    running.run()
    view = StepView(running.engine.tiers, lambda _request, start, stop: f"[{start}:{stop}]")
    lines = [line for line in map(view.line, records) if line]
    assert any("head 16 + noise 240" in line for line in lines)
    assert {view.header().index("KV")} == {re.search(r"\d+ -> ", line).start() for line in lines}  # type: ignore[union-attr]
    assert {view.header().index("transition")} == {re.search(r"\w+ -> \D", line).start() for line in lines}  # type: ignore[union-attr]
