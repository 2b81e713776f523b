"""`fsm-spec generate` and `fsm-spec model` from outside: what they print, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.executor import threads
from fsm_spec.executor.generate import Session
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer
from fsm_spec.executor.models.load import SafetensorsFolder
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.prompts_option import read_prompts
from fsm_spec.executor.threads import default_threads
from fsm_spec.replay import replay

TOKENS = [*sorted(ByteLevel.alphabet()), "<|end|>"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 1) + [3],
    "tokenizer.ggml.merges": [],
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}!{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model with a chat template."""
    made = tmp_path_factory.mktemp("model")
    config = tiny_config(vocab=len(TOKENS), hidden=32, heads=2, kv_heads=1, context=128)
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": 128,
        "rms_norm_eps": config.rms_eps,
        "eos_token_id": len(TOKENS) - 1,
    }
    (made / "config.json").write_text(json.dumps(published))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    build_tokenizer(METADATA, "tiny.gguf").save(str(made / "tokenizer.json"))
    weights = {name: tensor.float().contiguous() for name, tensor in random_weights(config, 0).items()}
    save_file(weights, made / "model.safetensors")
    return made


Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(folder: Path) -> Invoke:
    """Return a function that runs `generate` on the tiny model -> (exit code, stdout, stderr)."""

    def run(*options: str, spec: str = "ngram") -> tuple[int, str, str]:
        given = ["generate", spec, "--model", str(folder), "--dtype", "float32", *options]
        if "--prompt" not in given:
            given += ["--prompt", "hello"]
        done = CliRunner().invoke(application(), given)
        return done.exit_code, done.stdout, done.stderr

    return run


def test_text_goes_to_stdout_and_counts_to_stderr(invoke: Invoke) -> None:
    """A pipe gets the text alone."""
    code, out, err = invoke("--max-tokens", "12")
    value = json.loads(invoke("--max-tokens", "12", "--json")[1])
    assert (0, value["text"] + "\n") == (code, out)
    assert "12 tokens" in err
    assert "acceptance length" in err


def test_json_is_one_value_with_the_counts(invoke: Invoke) -> None:
    """What varies between runs stands under `run`; everything else is the same each time."""
    first, second = (json.loads(invoke("--max-tokens", "9", "--json", "--steps")[1]) for _ in range(2))
    assert first.pop("run").keys() == second.pop("run").keys()
    assert first == second
    assert {
        "text",
        "token_ids",
        "finish_reason",
        "rounds",
        "acceptance_length",
        "tokens_per_forward",
    } < first.keys()
    assert (9, "length", "ngram") == (len(first["token_ids"]), first["finish_reason"], first["spec"])


def test_several_prompts(invoke: Invoke, tmp_path: Path) -> None:
    """Prompts of one run answer as each does alone, under their own lines and in their order; JSON is a list."""
    file = tmp_path / "prompts.txt"
    file.write_text("two  words\r\n\n" + "x" * 70 + "\n", encoding="utf-8")
    options = ["--max-tokens", "9", "--prompt", "hello", "--prompts", str(file)]
    code, out, err = invoke(*options)
    texts = ["hello", "two  words", "x" * 70]
    alone = [json.loads(invoke("--max-tokens", "9", "--prompt", text, "--json")[1]) for text in texts]
    titles = ["== 1 of 3: hello", "== 2 of 3: two words", f"== 3 of 3: {'x' * 60}..."]
    lines = [f"{title}\n{value['text']}\n" for title, value in zip(titles, alone, strict=True)]
    assert (0, "".join(lines)) == (code, out)
    assert "27 tokens in" in err
    together = json.loads(invoke(*options, "--json")[1])
    for value in (*together, *alone):
        value.pop("run")
    assert alone == together


def test_prompts_that_are_equal_draw_apart(invoke: Invoke) -> None:
    """Seeds count up from the one given, so that the second of two equal prompts is that of the next seed."""
    options = ["--max-tokens", "9", "--temperature", "2", "--json", "--prompt", "hi"]
    both = json.loads(invoke(*options, "--prompt", "hi", "--seed", "4")[1])
    following = json.loads(invoke(*options, "--seed", "5")[1])
    assert both[0]["token_ids"] != both[1]["token_ids"] == following["token_ids"]


def test_steps_and_trace_of_several_prompts(invoke: Invoke, tmp_path: Path) -> None:
    """Rounds of both stand in one table, whole texts below each other, and the trace is one that the spec allows."""
    path = tmp_path / "trace.jsonl"
    given = ["--prompt", "hello", "--prompt", "you", "--max-tokens", "6", "--trace", str(path), "--steps"]
    code, out, err = invoke(*given)
    assert (0, ["== 1 of 2: hello", "== 2 of 2: you"]) == (
        code,
        [line for line in out.splitlines() if line[:2] == "=="],
    )
    assert {"0", "1"} <= {line.split()[0] for line in err.splitlines() if line}
    assert 2 == replay(path).ended


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"prompt": "a"}\n"b"\n\n', None),
        ("a.jsonl", '{"prompt": "a"}\n{"text": "b"}\n', "a.jsonl:2: there is no prompt"),
        ("a.jsonl", "a\n", "a.jsonl:1: this is no JSON"),
        ("a.txt", "\n \n", "a.txt holds no prompt"),
        ("a.txt", "\udcff", "it is no UTF-8"),
        ("b/a.txt", None, "cannot be read: No such file"),
    ],
)
def test_files_of_prompts(tmp_path: Path, name: str, content: str | None, sentence: str | None) -> None:
    """Lines of JSON are strings or objects with a prompt; a broken file names the line and the way out."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    if sentence is None:
        assert ("first", "a", "b") == read_prompts(["first"], path)
        return
    with pytest.raises(UserError, match=sentence):
        read_prompts((), path)


def test_no_prompt(folder: Path) -> None:
    """A run has at least one."""
    done = CliRunner().invoke(application(), ["generate", "ar", "--model", str(folder)])
    assert 2 == done.exit_code
    assert "there is no prompt; give --prompt TEXT" in done.stderr


def test_no_round_is_null(invoke: Invoke) -> None:
    """Where no round ran there is no rate: null in JSON, and left out of the closing line."""
    code, out, err = invoke("--max-tokens", "0", "--json")
    value = json.loads(out)
    assert (0, "", [], 0) == (code, value["text"], value["token_ids"], value["rounds"])
    assert (None, None, None) == (
        value["acceptance_length"],
        value["tokens_per_forward"],
        value["run"]["first_token_s"],
    )
    code, out, err = invoke("--max-tokens", "0")
    assert (0, "\n") == (code, out)
    assert err.startswith("0 tokens in 0 rounds, finish reason length, ")


def test_threads_come_from_the_option_else_the_machine(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch gets `--threads`, else OMP_NUM_THREADS, else the cores that others leave; `run` says how many."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    try:
        value = json.loads(invoke("--max-tokens", "1", "--threads", "2", "--json")[1])
        assert 2 == value["run"]["threads"] == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert 3 == default_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    monkeypatch.setattr(threads, "_cores", lambda: 8)
    for load, left in ((2.6, 5), (40.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        assert left == default_threads()
    monkeypatch.delattr(os, "getloadavg")
    assert 8 == default_threads()
    assert 2 == invoke("--threads", "0")[0]


def test_steps_and_text_do_not_interleave(folder: Path) -> None:
    """With steps the text comes in one piece after the last row; both streams together as on a terminal."""
    given = ["generate", "ngram", "--model", str(folder), "--prompt", "hello", "--max-tokens", "9"]
    given += ["--dtype", "float32"]
    plain = CliRunner().invoke(application(), given)
    done = CliRunner().invoke(application(), [*given, "--steps"])
    assert plain.stdout == done.stdout
    rows, text, end = done.output.partition(plain.stdout)
    assert "->" in rows.splitlines()[-1]
    assert plain.stdout == text
    assert end.startswith("9 tokens in ")


def test_text_ends_its_line_when_a_run_breaks_off(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was streamed is flushed with a newline, so that the sentence about the fault starts a line."""
    iterate = Session.iterate

    def break_off(session: Session) -> dict[int, str]:
        if session.runner.forwards == 4:
            raise PoolExhausted("nothing moves")
        return iterate(session)

    whole = invoke("--max-tokens", "9", spec="ar")[1]
    monkeypatch.setattr(Session, "iterate", break_off)
    for more in ((), ("--steps",)):
        code, out, err = invoke("--max-tokens", "9", *more, spec="ar")
        assert 2 == code
        assert out.endswith("\n")
        assert whole.startswith(out[:-1])
        assert err.endswith("nothing moves\n")


def test_chat_template_and_raw_prompt(invoke: Invoke) -> None:
    """The template's end mark counts as a token; a raw prompt goes in as it is."""
    assert 6 == json.loads(invoke("--max-tokens", "1", "--json")[1])["prompt_tokens"]
    assert 5 == json.loads(invoke("--max-tokens", "1", "--json", "--raw")[1])["prompt_tokens"]


def test_all_specs_give_the_same_greedy_tokens(invoke: Invoke) -> None:
    """Without an adapter gated rows run base weights, and greedy text is the target's own."""
    given = ("--max-tokens", "16", "--json")
    texts = {
        spec: json.loads(invoke(*given, spec=spec)[1])["token_ids"]
        for spec in ("ar", "ngram", "isd", "uno_linear", "linear_spec")
    }
    assert [texts["ar"]] * 5 == list(texts.values())


def test_parameters_and_sampling_are_passed_on(invoke: Invoke) -> None:
    """Equal seeds give equal texts, other seeds others; a parameter is in the report."""
    sampled = ("--max-tokens", "16", "--temperature", "1.2", "--top-k", "40", "--json", "--set", "n=3")
    one, same, other = (
        json.loads(invoke(*sampled, "--seed", seed, spec="isd")[1]) for seed in ("1", "1", "2")
    )
    assert one["token_ids"] == same["token_ids"] != other["token_ids"]
    assert {"n": 3} == one["params"]


def test_trace_is_replayable(invoke: Invoke, tmp_path: Path) -> None:
    """The trace of a run is one that its spec allows, and steps show the same rounds."""
    path = tmp_path / "trace.jsonl"
    code, _, err = invoke("--max-tokens", "10", "--trace", str(path), "--steps", spec="isd")
    assert 0 == code
    done = replay(path)
    assert ("isd", 1, 10) == (done.spec, done.ended, done.emitted)
    assert "cold -> verify" in err


def test_what_the_context_leaves_is_the_default_length(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    """The default of --max-tokens is no wish that a short context could refuse."""
    short = shutil.copytree(folder, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    code, out, _ = invoke("--model", str(short), "--ignore-eos", "--raw", "--json")
    assert 0 == code
    assert 64 - len("hello") == len(json.loads(out)["token_ids"])
    code, _, err = invoke("--model", str(short), "--max-tokens", "65")
    assert 2 == code
    assert "more than the model's context of 64" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--set", "size=2"], "has no parameter 'size'"),
        (["--set", "k=99"], "k=99 is out of range; choose 1 to 32"),
        (["--model", "nowhere"], 'there is no model "nowhere"'),
        (["--pages", "1"], "but the pool has 1"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--mask-id", "9999"], "mask id 9999 is out of range"),
        (["--max-tokens", "9" * 20], "is more than the model's context of 128; give at most 128"),
        (["--prompt", "x" * 200], "the prompt has 201 tokens and the model's context 128"),
        (["--trace", "nowhere/trace.jsonl"], "nowhere/trace.jsonl cannot be written"),
        (["--adapter", "nowhere"], "has no adapter_config.json"),
        (["--stop", ""], "a stop text is empty"),
        (["--seed", str(2**63)], "does not fit in 64 bits"),
        (["--policy", "hold"], "no policy is called 'hold'"),
        (["--draft", "draft=x"], "has no draft model of that name"),
        (
            ["--quantization", "int8", "--resident"],
            "does not run where requests live on a device; leave out --resident",
        ),
        (["--quantization", "int8", "--tensor-parallel", "2"], "runs in one process"),
        (["--prompt", "\udc80"], "no valid UTF-8"),
    ],
)
def test_a_mistake_gets_one_sentence(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    """The thing, the place and the way out, on one line, also as JSON, before any weight is read; no traceback."""
    monkeypatch.delattr(SafetensorsFolder, "__enter__")
    code, out, err = invoke(*options)
    assert (2, "") == (code, out)
    assert sentence in err
    assert 1 == len(err.strip().splitlines())
    code, out, _ = invoke(*options, "--json")
    assert 2 == code
    assert sentence in json.loads(out)["error"]


def test_unknown_spec_is_answered_with_the_nearest(invoke: Invoke) -> None:
    """A slip of the pen in the spec's name is found before any model loads."""
    code, _, err = invoke(spec="ngramm")
    assert 2 == code
    assert 'did you mean "ngram"?' in err


def test_numbers_that_overflow(folder: Path, tmp_path: Path) -> None:
    """Logits that are no numbers end a run with a sentence instead of noise, which names the prompt among several."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"] *= 1e38
    weights["model.layers.0.mlp.up_proj.weight"] *= 1e10
    save_file(weights, tmp_path / "model.safetensors")
    given = ["generate", "ar", "--model", str(tmp_path), "--dtype", "float32", "--prompt", "x"]
    done = CliRunner().invoke(application(), given)
    assert 2 == done.exit_code
    assert "logits became NaN" in done.stderr
    done = CliRunner().invoke(application(), [*given, "--prompt", "y", "--json"])
    assert 2 == done.exit_code
    assert "(prompt 1, 2)" in json.loads(done.stdout)["error"]


def test_broken_weights_are_named(folder: Path, tmp_path: Path) -> None:
    """A cut file gives its name and the way out."""
    for path in folder.iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(
            content[: len(content) // 2] if path.suffix == ".safetensors" else content
        )
    given = ["generate", "ar", "--model", str(tmp_path), "--prompt", "x"]
    done = CliRunner().invoke(application(), given)
    assert 2 == done.exit_code
    assert "model.safetensors" in done.stderr
    assert "fetch the model again" in done.stderr


def test_missing_model_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the model in the cache, the sentence says how to get it."""
    monkeypatch.setenv("FSM_SPEC_CACHE", str(tmp_path))
    done = CliRunner().invoke(application(), ["generate", "ar", "--prompt", "x"])
    assert 2 == done.exit_code
    assert "run: fsm-spec model get smollm2-135m" in done.stderr
    listed = CliRunner().invoke(application(), ["model", "list"])
    assert "not here; fsm-spec model get smollm2-135m downloads 93 MB\n" == listed.stdout.partition("  ")[2]
    listed = CliRunner().invoke(application(), ["model", "list", "--json"])
    assert [False] == [entry["fetched"] for entry in json.loads(listed.stdout)]
    refused = CliRunner().invoke(application(), ["model", "get", "gpt"])
    assert (2, 'no model "gpt" can be fetched; known: smollm2-135m\n') == (refused.exit_code, refused.stderr)
