"""Text to tokens and back: streams cut at characters, chats by the model's template."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from fsm_spec.errors import UserError
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer, tokenizer_settings
from fsm_spec.executor.tokenizer import Tokenizer

TOKENS = [*sorted(ByteLevel.alphabet()), "he", "hel", "<|end|>"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 1) + [3],
    "tokenizer.ggml.merges": ["h e", "he l"],
    "tokenizer.ggml.bos_token_id": len(TOKENS) - 1,
}
END = len(TOKENS) - 1
TEXT = "héllo 世界 🙂 12\n\tx"


def make(template: object = None, **changes: object) -> Tokenizer:
    """Build the tokenizer of a metadata block, whose keys are given without their prefix."""
    metadata = METADATA | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer(
        build_tokenizer(metadata, "tiny.gguf"), tokenizer_settings(metadata) | {"chat_template": template}
    )


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_round_trip(pre: str) -> None:
    """Every byte has a token, so any text comes back."""
    tokenizer = make(pre=pre)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_special_tokens() -> None:
    """They are one token in a text, hidden in decoded text, and set in front only where the model wants it."""
    tokenizer = make()
    assert [END] == tokenizer.encode("<|end|>")
    assert tokenizer.decode([END]) == ""
    assert tokenizer.token(END) == "<|end|>"
    assert tokenizer.token_id("<|end|>") == END
    assert len(TOKENS) == tokenizer.vocab
    first = make(add_bos_token=True)
    assert [END, TOKENS.index("h")] == first.encode("h")
    assert [TOKENS.index("h")] == first.encode("h", special=False)


def test_stream_holds_back_unfinished_characters() -> None:
    """No U+FFFD inside a character, wherever rounds cut the tokens; the pieces join to the text."""
    tokenizer = make()
    ids = tokenizer.encode(TEXT)
    for width in (1, 2, 3, len(ids)):
        stream = tokenizer.stream()
        pieces = ["".join(stream.push(ids[at : at + width])) for at in range(0, len(ids), width)]
        assert not any("\ufffd" in piece for piece in pieces)
        assert TEXT == "".join(pieces) + stream.finish()


def test_stream_gives_up_broken_characters_at_the_end() -> None:
    """Bytes that never become a character are shown once, at the end."""
    tokenizer = make()
    ids = tokenizer.encode("a🙂")[:-1]
    stream = tokenizer.stream()
    assert "a" == "".join(stream.push(ids))
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


TEMPLATE = """{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}
    {{- '<' + message.role + '>' + message.content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""


def test_chat_follows_the_template() -> None:
    """Messages, text parts and the generation prompt reach the template."""
    tokenizer = make(TEMPLATE)
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat(chat) == "<user>ab\n<assistant>"
    assert tokenizer.apply_chat(chat, add_generation_prompt=False) == "<user>ab\n"
    assert tokenizer.encode("<user>ab\n<assistant>") == tokenizer.encode_chat(chat)


def test_named_templates_and_functions() -> None:
    """Of several templates the default is taken; date and JSON functions exist."""
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ strftime_now('%Y') }}"},
    ]
    assert make(named).apply_chat([]) in {
        str(datetime.now(UTC).year),
        str(datetime.now(UTC).astimezone().year),
    }
    assert make("{{ tools | tojson }}{{ bos_token }}").apply_chat([], tools=["ä"]) == '["ä"]<|end|>'


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, [], "no chat template"),
        (TEMPLATE, [{"role": "tool", "content": "x"}], "refuses these messages: no tools"),
        ("{{ ''.__class__.__mro__ }}", [], "refuses these messages"),
        ("{{ 1 / 0 }}", [], "refuses these messages"),
        ("{% if %}", [], "refuses these messages"),
        (TEMPLATE, [{"role": "user", "content": [{"type": "image_url"}]}], "a part that is no text"),
    ],
)
def test_chat_faults_get_a_sentence(
    template: str | None, messages: list[dict[str, Any]], message: str
) -> None:
    """A template that fails, refuses or reaches out of its sandbox ends in one sentence."""
    with pytest.raises(UserError, match=message):
        make(template).apply_chat(messages)


def test_template_file_wins(tmp_path: Path) -> None:
    """Newer folders hold the template in a file of its own."""
    build_tokenizer(METADATA, "tiny.gguf").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old", "eos_token": {"content": "E"}}')
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    assert Tokenizer.from_folder(tmp_path).apply_chat([]) == "E"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer kind 'llama' is not supported"),
        ({"pre": "other"}, 'pre-tokenizer "other" is not supported'),
        ({"tokens": None}, "has no vocabulary"),
        ({"merges": ["x yz"]}, "the vocabulary is broken"),
    ],
)
def test_unknown_vocabularies_are_refused(changes: dict[str, Any], message: str) -> None:
    """A wrong tokenizer would give wrong text in silence."""
    with pytest.raises(UserError, match=message):
        make(**changes)
