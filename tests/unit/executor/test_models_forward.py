"""The one forward: against a dense reading, in one pass and token by token, alone and batched, masked and gated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.models.config import Experts, ModelConfig
from fsm_spec.executor.models.random import random_weights, tiny_config, tiny_model
from fsm_spec.executor.models.rope import RopeScaling
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.transformer import EMBEDDED, Transformer, normed, rotary_frequencies

Project = Callable[[str, torch.Tensor], torch.Tensor]
PROMPT = [5, 9, 2, 40, 11, 7, 3]


def causal(rows: int) -> torch.Tensor:
    """Let each row see itself and the rows before it."""
    return torch.ones(rows, rows).tril().bool()


class Bench:
    """Run blocks of requests on one model with pages of its own."""

    def __init__(self, model: Transformer, page_size: int = 4) -> None:
        self.model = model
        self.cache = PagedCache(model.config, 64, page_size, model.dtype)
        self.allocator = PageAllocator(64, page_size)
        self.page_size = page_size

    def run(
        self,
        blocks: dict[str, tuple[int, list[int]]],
        mask: torch.Tensor | None = None,
        gated: list[bool] | None = None,
    ) -> torch.Tensor:
        """Run blocks {request: (kv, tokens)} in one launch; returns the logits of all rows."""
        starts, positions, slots, contexts, masks, tokens = [0], [], [], [], [], []
        for request, (kv, block) in blocks.items():
            stop = kv + len(block)
            needed = math.ceil(stop / self.page_size)
            self.allocator.resize(request, max(needed, self.allocator.held(request)))
            starts.append(starts[-1] + len(block))
            positions.append(torch.arange(kv, stop))
            slots.append(self.allocator.slots(request, kv, stop))
            contexts.append(self.allocator.slots(request, 0, kv))
            masks.append(causal(len(block)) if mask is None else mask)
            tokens.extend(block)
        rows = RowBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            row_start=starts,
            context_slots=pad_sequence(contexts, batch_first=True),
            context=[len(context) for context in contexts],
            masks=masks,
            logits_rows=torch.arange(len(tokens)),
            adapter_rows=None if gated is None else torch.tensor(gated),
        )
        assert len(blocks) == rows.requests
        return self.model.forward(rows, self.cache)


def dense_feed_forward(
    config: ModelConfig, index: int, lines: torch.Tensor, project: Project
) -> torch.Tensor:
    """Run one network over all lines, or for each line the experts that it chooses."""

    def network(place: str, read: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(project(f"{place}gate_proj", read))
        return project(f"{place}down_proj", gate * project(f"{place}up_proj", read))

    experts = config.experts
    if experts is None or index not in experts.layers:
        return network("mlp.", lines)
    mixed = torch.zeros_like(lines)
    for row, line in enumerate(lines):
        chances = project("mlp.gate", line).softmax(0)
        best = chances.argsort(descending=True)[: experts.per_token].tolist()
        mass = sum(float(chances[number]) for number in best) if experts.normalised else 1.0
        for number in best:
            mixed[row] += float(chances[number]) / mass * network(f"mlp.experts.{number}.", line)
    return mixed


def dense_logits(config: ModelConfig, weights: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """Run a causal transformer the obvious way, one head at a time, in float64."""

    def norm(lines: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return lines / (lines.pow(2).mean(-1, keepdim=True) + config.rms_eps).sqrt() * weight

    def turn(line: torch.Tensor, position: int) -> torch.Tensor:
        half = config.head_dim // 2
        angles = position * rotary_frequencies(config)
        first, second = line[:half], line[half:]
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
        )

    stream = weights["model.embed_tokens.weight"][tokens]
    for index in range(config.layers):
        layer = {k.split(".", 3)[3]: v for k, v in weights.items() if k.startswith(f"model.layers.{index}.")}
        normed = norm(stream, layer["input_layernorm.weight"])

        def project(name: str, lines: torch.Tensor, layer: dict[str, torch.Tensor] = layer) -> torch.Tensor:
            return lines @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", torch.zeros(1))

        parts = []
        for head in range(config.heads):
            at = slice(head * config.head_dim, (head + 1) * config.head_dim)
            shared = head // (config.heads // config.kv_heads)
            kv_at = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
            query = project("self_attn.q_proj", normed)[:, at]
            key = project("self_attn.k_proj", normed)[:, kv_at]
            if config.qk_norm:
                query = norm(query, layer["self_attn.q_norm.weight"])
                key = norm(key, layer["self_attn.k_norm.weight"])
            query = torch.stack([turn(line, position) for position, line in enumerate(query)])
            key = torch.stack([turn(line, position) for position, line in enumerate(key)])
            scores = query @ key.T / math.sqrt(config.head_dim)
            if config.rope_scaling is not None:
                beta, original = config.rope_scaling.query_beta, config.rope_scaling.original_context or 1
                gain = [1 + beta * math.log(1 + place // original) for place in range(len(tokens))]
                scores *= config.rope_scaling.attention_factor**2 * torch.tensor(gain)[:, None].double()
            scores = scores.masked_fill(~causal(len(tokens)), -math.inf)
            parts.append(scores.softmax(-1) @ project("self_attn.v_proj", normed)[:, kv_at])
        stream = stream + project("self_attn.o_proj", torch.cat(parts, 1))
        normed = norm(stream, layer["post_attention_layernorm.weight"])
        stream = stream + dense_feed_forward(config, index, normed, project)
    head_weight = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(stream, weights["model.norm.weight"]) @ head_weight.T


CONFIGS = {
    "plain": tiny_config(),
    "normed": tiny_config(qk_norm=True, tied=True),
    "biased": ModelConfig(64, 2, 4, 1, 16, 96, 64, 512, qkv_bias=True, output_bias=True, rms_eps=1e-6),
    "scaled": ModelConfig(64, 1, 2, 2, 32, 96, 64, 512, rope_scaling=RopeScaling("linear", factor=2.0)),
    "far": ModelConfig(
        64, 1, 2, 2, 32, 96, 64, 512,
        rope_scaling=RopeScaling("yarn", 4.0, original_context=3, attention_factor=1.2, query_beta=0.5),
    ),
    "mixed": replace(tiny_config(qk_norm=True), experts=Experts(5, 2, 24, normalised=True, layers=frozenset({1}))),
    "unnormalised": replace(tiny_config(), experts=Experts(4, 3, 24, normalised=False, layers=frozenset({0, 1}))),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_forward_equals_dense_reading(name: str) -> None:
    """A wrong norm, rotary half, head share, bias or fused weight would show."""
    config = CONFIGS[name]
    weights = random_weights(config, 3)
    got = Bench(Transformer(config, weights, torch.float64)).run({"a": (0, PROMPT)})
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, dense_logits(config, weights, PROMPT).float(), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_one_pass_equals_token_by_token(dtype: torch.dtype, *, qk_norm: bool) -> None:
    """The cache holds what a later row would have seen in one pass."""
    model = tiny_model(dtype=dtype, qk_norm=qk_norm)
    whole = Bench(model).run({"a": (0, PROMPT)})
    bench = Bench(model)
    steps = torch.cat([bench.run({"a": (kv, [token])}) for kv, token in enumerate(PROMPT)])
    # bfloat16 keeps 8 bits, and the logits of this model reach 10.
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 1.5}[dtype]
    torch.testing.assert_close(steps, whole, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batched_equals_alone(dtype: torch.dtype) -> None:
    """A neighbour in the launch, of equal or other length, must not change a request's tokens."""
    model = tiny_model(dtype=dtype)
    prompts = {"a": PROMPT, "b": [1, 2, 3], "c": [8] * 11}
    next_blocks = {"a": (7, [30, 31]), "b": (3, [32, 33]), "c": (11, [34])}
    alone = {}
    for name, prompt in prompts.items():
        bench = Bench(model)
        bench.run({name: (0, prompt)})
        alone[name] = bench.run({name: next_blocks[name]})
    bench = Bench(model)
    bench.run({name: (0, prompt) for name, prompt in prompts.items()})
    together = bench.run(next_blocks)
    expected = torch.cat([alone[name] for name in prompts])
    torch.testing.assert_close(together, expected, atol=1e-4 if dtype == torch.float32 else 1e-6, rtol=0)
    assert torch.equal(expected.argmax(1), together.argmax(1))


def test_mask_says_what_a_row_sees() -> None:
    """Bidirectional rows see later rows of their block, causal rows do not, and hidden rows change nothing."""
    model = tiny_model()

    def second_row(mask: torch.Tensor, last: int) -> torch.Tensor:
        bench = Bench(model)
        bench.run({"a": (0, PROMPT)})
        return bench.run({"a": (7, [1, 2, last])}, mask)[1]

    both = torch.ones(3, 3).bool()
    assert torch.equal(second_row(causal(3), 50), second_row(causal(3), 51))
    assert not torch.allclose(second_row(both, 50), second_row(both, 51))
    assert not torch.allclose(second_row(both, 50), second_row(causal(3), 50))


def test_rejected_rows_leave_no_trace() -> None:
    """Slots behind the kept prefix may be written again: their old K and V are never read."""
    model = tiny_model()
    bench = Bench(model)
    bench.run({"a": (0, PROMPT)})
    bench.run({"a": (7, [60, 61, 62])})
    fresh = Bench(model)
    fresh.run({"a": (0, PROMPT)})
    torch.testing.assert_close(bench.run({"a": (7, [1])}), fresh.run({"a": (7, [1])}), atol=1e-6, rtol=0)


def test_logits_only_where_wanted() -> None:
    """The head runs over the named rows, in their order."""
    model = tiny_model()
    bench = Bench(model)
    every = bench.run({"a": (0, PROMPT)})
    slots = bench.allocator.slots("a", 0, 7)
    rows = RowBatch(
        torch.tensor(PROMPT),
        torch.arange(7),
        slots,
        [0, 7],
        slots[None, :0],
        [0],
        [causal(7)],
        torch.tensor([6, 2]),
    )
    torch.testing.assert_close(model.forward(rows, bench.cache), every[[6, 2]], atol=1e-5, rtol=0)


def test_greedy_text_is_no_loop() -> None:
    """Conformance on a model that repeats one token would prove nothing."""
    for seed in range(3):
        for qk_norm in (False, True):
            bench = Bench(tiny_model(seed=seed, qk_norm=qk_norm))
            token = int(bench.run({"a": (0, PROMPT)})[-1].argmax())
            made = [token]
            for kv in range(7, 47):
                token = int(bench.run({"a": (kv, [token])})[-1].argmax())
                made.append(token)
            assert len(set(made)) > 12


def test_llama3_scaling_keeps_short_and_divides_long_wavelengths() -> None:
    """The first frequencies stay, the last are divided by the factor, and between them nothing jumps."""
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    plain = ModelConfig(64, 1, 1, 1, 128, 64, 64, 131072, rope_theta=500000.0)
    scaled = ModelConfig(64, 1, 1, 1, 128, 64, 64, 131072, rope_theta=500000.0, rope_scaling=scaling)
    ratio = rotary_frequencies(plain) / rotary_frequencies(scaled)
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(8.0)
    assert bool((ratio[1:] >= ratio[:-1] - 1e-12).all())


def test_missing_and_misshapen_weights_get_a_sentence() -> None:
    """A wrong checkpoint names the weight."""
    config = tiny_config()
    weights = random_weights(config, 0)
    with pytest.raises(
        UserError, match=r"o_proj.weight\" has shape \[1, 1\], config.json asks for \[64, 64\]"
    ):
        Transformer(
            config, weights | {"model.layers.1.self_attn.o_proj.weight": torch.zeros(1, 1)}, torch.float32
        )
    del weights["model.norm.weight"]
    with pytest.raises(UserError, match=r'no weight "model.norm.weight"'):
        Transformer(config, weights, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("model.layers.1.mlp.down_proj.weight", math.nan),
        ("model.norm.weight", math.nan),
        ("model.embed_tokens.weight", -math.inf),
        ("lm_head.weight", 1e300),
    ],
)
def test_weights_that_are_no_numbers_are_refused(name: str, bad: float, dtype: torch.dtype) -> None:
    """One NaN would turn every text into noise; a number too large for the format is infinity there."""
    config = tiny_config()
    weights = random_weights(config, 0)
    weights[name].view(-1)[7] = bad
    with pytest.raises(UserError, match=f'weight "{name}" holds numbers that are not finite'):
        Transformer(config, weights, dtype)


def test_captured_streams_are_those_of_shorter_models() -> None:
    """A drafter reads the stream after layer i: what a model of the first i + 1 layers ends with."""
    config = tiny_config(layers=3)
    weights = random_weights(config, 0)
    model = Transformer(config, weights, torch.float64)
    bench = Bench(model)
    every = bench.run({"a": (0, PROMPT)})
    rows = RowBatch(
        torch.tensor(PROMPT),
        torch.arange(7),
        bench.allocator.slots("a", 0, 7),
        [0, 7],
        torch.zeros(1, 0, dtype=torch.int64),
        [0],
        [causal(7)],
        torch.tensor([6]),
    )
    logits, streams = model.forward_captured(rows, bench.cache, [1, EMBEDDED, 2, 3])
    torch.testing.assert_close(logits, every[6:], atol=1e-5, rtol=0)
    after, embedded, last, final = streams.split(config.hidden, 1)
    torch.testing.assert_close(embedded, weights["model.embed_tokens.weight"][PROMPT])
    torch.testing.assert_close(final, normed(last, model.final_norm))
    shorter = Transformer(replace(config, layers=2), weights, torch.float64)
    read = shorter.read_logits(normed(after, shorter.final_norm))
    torch.testing.assert_close(Bench(shorter).run({"a": (0, PROMPT)}), read, atol=1e-5, rtol=0)
