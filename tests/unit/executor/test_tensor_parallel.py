"""A model over several processes: the parts sum to the whole, and a process that is gone ends all in a sentence."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor import tensor_parallel
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.grammar import Grammar
from fsm_spec.executor.models.config import Experts, ModelConfig
from fsm_spec.executor.models.load import load_model
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.split import Split, SplitWeights
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.request import Controls
from fsm_spec.executor.tensor_parallel import Group, load_parallel, refuse_drafters
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.table import Table

TOKENS = 12


def batch(gated: bool) -> RowBatch:  # noqa: FBT001 -- a case's
    """Make rows of two requests, some of which run with the adapter."""
    masks = [torch.ones(rows, rows, dtype=torch.bool).tril() for rows in (5, 3)]
    return RowBatch(
        token_ids=torch.arange(1, 9),
        positions=torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]),
        slots=torch.arange(8),
        row_start=[0, 5, 8],
        context_slots=torch.zeros(2, 0, dtype=torch.int64),
        context=[0, 0],
        masks=masks,
        logits_rows=torch.tensor([4, 7]),
        adapter_rows=torch.arange(8) % 2 == 0 if gated else None,
    )


def run_parts(parts: list[Transformer], rows: RowBatch) -> list[torch.Tensor]:
    """Run the parts of a model beside each other, in threads that sum what they add to the stream."""
    barrier, added = threading.Barrier(len(parts)), [torch.empty(0)] * len(parts)

    def run(place: int) -> torch.Tensor:
        model = parts[place]

        def over_parts(part: torch.Tensor) -> torch.Tensor:
            added[place] = part
            barrier.wait(30)
            total = torch.stack(added).sum(0)
            barrier.wait(30)
            return total

        model.over_parts = over_parts
        return model.forward(rows, PagedCache(model.config, 1, 8, model.dtype))

    with ThreadPoolExecutor(len(parts)) as threads:
        return list(threads.map(run, range(len(parts))))


@pytest.mark.parametrize(
    ("size", "changes", "gated"),
    [
        (2, {}, False),
        (2, {"qkv_bias": True, "output_bias": True, "qk_norm": True}, True),
        (4, {"experts": Experts(4, 2, 32, normalised=True, layers=frozenset({1}))}, True),
    ],
)
def test_parts_sum_to_the_whole(size: int, changes: dict[str, Any], gated: bool) -> None:  # noqa: FBT001 -- a case's
    """A head, a bias or an adapter that is cut wrongly, or added twice, changes logits."""
    config = replace(tiny_config(heads=8, kv_heads=4), **changes)
    weights, adapter = random_weights(config, 3), random_adapter(config, torch.float64)
    whole = Transformer(config, weights, torch.float64)
    parts = []
    for rank in range(size):
        split = Split(rank, size)
        part = Transformer(split.config(config), SplitWeights(weights, split), torch.float64)
        part.adapter = split.adapter(adapter, config)
        parts.append(part)
    whole.adapter = adapter
    rows = batch(gated)
    expected = whole.forward(rows, PagedCache(config, 1, 8, torch.float64))
    for given in run_parts(parts, rows):
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    assert weights.keys() == set(SplitWeights(weights, Split(0, size)))
    assert len(weights) == len(SplitWeights(weights, Split(0, size)))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "words"),
    [
        (9, 3, 2, "9 attention heads, which 2 processes cannot share evenly; --tensor-parallel may be 3"),
        (8, 2, 4, "2 KV heads, .* may be 2"),
        (4, 1, 2, "1 KV heads, .* may be no number above 1"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(heads: int, kv_heads: int, size: int, words: str) -> None:
    """Heads stay whole; the sentence says which numbers of processes fit."""
    config = replace(tiny_config(heads=8, kv_heads=2), heads=heads, kv_heads=kv_heads, ffn=144)
    with pytest.raises(UserError, match=words):
        Split(0, size).config(config)


def test_names_of_other_checkpoints_are_read() -> None:
    """A checkpoint that calls its layers otherwise is cut the same way."""
    config = tiny_config(heads=8, kv_heads=4)
    weights, split = random_weights(config, 3), Split(1, 2)
    other = {name.replace("model.", "encoder."): tensor for name, tensor in weights.items()}
    part = SplitWeights(other, split, lambda name: name.replace("model.", "encoder."))
    for name in weights:
        assert torch.equal(SplitWeights(weights, split)[name], part[name])


def test_draft_models_are_refused() -> None:
    """They read whole layers of the target, and no process has them."""
    refuse_drafters(compiled("isd"))
    with pytest.raises(UserError, match=r"draft_lm drafts with a model of its own \(draft\).*leave out"):
        refuse_drafters(compiled("draft_lm"))


def compiled(name: str) -> Table:
    """Compile a shipped spec."""
    return compile_table(load(name).spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small random model into a folder."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415 -- only here

    made = tmp_path_factory.mktemp("model")
    config = tiny_config(hidden=32, heads=4, kv_heads=2)
    write(made, config)
    words = {f"t{index}": index for index in range(config.vocab)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(made / "tokenizer.json"))  # noqa: S106 -- a word
    return made


def write(made: Path, config: ModelConfig) -> None:
    """Write configuration and weights as they are published."""
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": 256,
        "rms_norm_eps": config.rms_eps,
        "eos_token_id": 0,
    }
    (made / "config.json").write_text(json.dumps(published))
    weights = {name: tensor.float().contiguous() for name, tensor in random_weights(config, 0).items()}
    save_file(weights, made / "model.safetensors")


class Even(Grammar):
    """Allow even tokens."""

    def allowed(self, output: NDArray[np.int64], ahead: Sequence[int]) -> torch.Tensor | None:  # noqa: ARG002 -- the base's
        """Tell which these are."""
        return torch.arange(self._vocabulary) % 2 == 0


def outputs(model: Transformer, name: str, resident: Resident | None = None) -> list[list[int]]:
    """Run three requests under a spec, with kept rows that move, pages that are found again and a grammar."""
    controls = Controls(grammar=Even(None, model.config.vocab, []))
    session = Session(compiled(name), model, pool=Pool(64, 8), prefix_cache=True, resident=resident)
    numbers = [
        session.add([1, 2, 3, 4, 5, 6, 7, 8, 9, last], Options(TOKENS, stop_ids=())) for last in (1, 2)
    ]
    session.run()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 3]
    numbers.append(session.add(text, Options(TOKENS, stop_ids=(), controls=controls)))
    session.run()
    assert all(token % 2 == 0 for token in session.result(numbers[-1]).token_ids)
    assert session.result(numbers[-1]).cached_tokens == 8
    return [session.result(number).token_ids for number in numbers]


def test_two_processes_give_the_tokens_of_one(folder: Path) -> None:
    """Row batches, cache moves and sums arrive in order; a process that dies ends the run in a sentence."""
    whole = load_model(folder, torch.float32).transformer
    model = load_parallel(folder, torch.float32, 2, threads=1).transformer
    assert isinstance(model, tensor_parallel.Leader)
    try:
        for name in ("ar", "uno_tree"):
            assert outputs(whole, name) == outputs(model, name)
            assert outputs(whole, name) == outputs(model, name, Resident(CpuPlace()))
        with pytest.raises(UserError, match="a tape on a CPU holds no sum over processes"):
            outputs(model, "ar", Resident(CpuPlace(graphs=True)))
        model.group.processes[0].kill()
        model.group.processes[0].join()
        with pytest.raises(
            UserError, match=r"process 1 of the 2 that run the model has ended \(exit code -9\)"
        ):
            outputs(model, "ar", Resident(CpuPlace()))
    finally:
        model.group.close()
    assert not any(process.is_alive() for process in model.group.processes)


def test_a_silent_death_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who waits for nothing, or for a sum that never comes, is ended too."""
    ended: list[int] = []
    monkeypatch.setattr(tensor_parallel, "_PATIENCE", 0.01)
    group = Group([])
    group.size = 2
    group.processes = [mp.get_context("spawn").Process(target=os.abort)]
    group.processes[0].start()
    monkeypatch.setattr(os, "_exit", ended.append)
    group._watch()
    group.close()
    assert [1] == ended
    assert "process 1 of the 2 that run the model has ended (exit code -6)" in capfd.readouterr().err
