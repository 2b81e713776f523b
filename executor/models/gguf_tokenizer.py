"""Build a tokenizer.json out of the metadata of a GGUF file (byte-level BPE vocabularies)."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from fsm_spec.errors import UserError

# `token_type` values of GGUF.
_CONTROL, _USER_DEFINED = 3, 4

# How two published families cut text into words; they differ in how many digits stay together.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"qwen2": rf"{_WORDS}|\p{{N}}|{_REST}", "llama-bpe": rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"}


def build_tokenizer(metadata: dict[str, Any], where: str) -> Tokenizer:
    """Build the tokenizer that `tokenizer.ggml.*` describes; raises UserError for other kinds than byte-level BPE."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UserError(
            f'"{where}": tokenizer kind {kind!r} is not supported; use the model\'s safetensors folder.'
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise UserError(f'"{where}" has no vocabulary; fetch it again.')
    pairs = [(merge.partition(" ")[0], merge.partition(" ")[2]) for merge in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # noqa: BLE001 (the Rust side raises Exception itself)
        raise UserError(f'"{where}": the vocabulary is broken ({error}); fetch it again.') from None
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, where)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(metadata, tokens)
    types = metadata.get("tokenizer.ggml.token_type") or []
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=token_type == _CONTROL, normalized=False)])
    return tokenizer


def _pre_tokenizer(pre: str, where: str) -> pre_tokenizers.PreTokenizer:
    """Choose how text is cut into words before BPE, by the name that the file gives it."""
    whole: pre_tokenizers.PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre in ("gpt-2", "default"):
        return whole
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    if pre in _SPLITS:
        pattern = Regex(_SPLITS[pre])
        return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior="isolated"), letters])
    raise UserError(
        f'"{where}": pre-tokenizer "{pre}" is not supported; use the model\'s safetensors folder.'
    )


def _post_processor(metadata: dict[str, Any], tokens: list[str]) -> processors.PostProcessor:
    """Put the first token in front of every text, where the file asks for it."""
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and isinstance(bos, int) and bos < len(tokens):
        first = tokens[bos]
        return processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, bos)]
        )
    return processors.ByteLevel(trim_offsets=False)


def tokenizer_settings(metadata: dict[str, Any]) -> dict[str, Any]:
    """Write what tokenizer_config.json holds: chat template and the texts of special tokens."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])

    def text(key: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return tokens[index] if isinstance(index, int) and index < len(tokens) else None

    special = {
        f"{key}_token": text(name) for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
        **special,
    }
