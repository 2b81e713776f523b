"""Text to token ids and back, from a model's own files: tokenizer.json, and its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from tokenizers.decoders import DecodeStream

from fsm_spec.errors import UserError
from fsm_spec.executor.models.config import read_json

Message = Mapping[str, Any]


class StreamDecoder:
    """Turn tokens into text as they come; bytes of an unfinished character are held back."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._length = 0

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """Take tokens and return the text that each of them makes certain."""
        step, tokenizer = self._stream.step, self._tokenizer
        self._ids += token_ids
        if len(token_ids) == 1:
            piece = step(tokenizer, token_ids[0]) or ""
            self._length += len(piece)
            return [piece]
        pieces = [step(tokenizer, token) or "" for token in token_ids]
        self._length += sum(map(len, pieces))
        return pieces

    def finish(self) -> str:
        """Return what was held back; broken characters become U+FFFD."""
        rest = str(self._tokenizer.decode(self._ids))[self._length :]
        self._length += len(rest)
        return rest


class Tokenizer:
    """Encode and decode text with a model's vocabulary, and lay out chats with its template."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._settings = settings

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja; only the first has to be there."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f'model folder "{folder}" has no tokenizer.json; fetch the model again with its tokenizer.'
            )
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 (the Rust side raises Exception itself)
            raise UserError(f'cannot read "{path}": {error}; fetch the model again.') from None
        settings_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        settings = read_json(settings_path) if settings_path.is_file() else {}
        if template_path.is_file():
            settings["chat_template"] = template_path.read_text(encoding="utf-8")
        return cls(tokenizer, settings)

    @property
    def vocab(self) -> int:
        """Count the ids, added tokens included."""
        return self._tokenizer.get_vocab_size()

    @property
    def has_chat_template(self) -> bool:
        """Say whether the model's files lay out chats."""
        return self.chat_template is not None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Encode a text; `special` adds the first token of models that want one."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Decode tokens; bytes that are no UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """Show one token as text, special tokens included."""
        return self.decode([token_id], skip_special=False)

    def token_bytes(self, token_id: int) -> bytes:
        """Give the bytes of one token, which may be part of a character."""
        written = self._tokenizer.id_to_token(token_id) or ""
        alphabet = _byte_alphabet()
        if all(letter in alphabet for letter in written):
            return bytes(alphabet[letter] for letter in written)
        return self.token(token_id).encode()

    def token_id(self, text: str) -> int | None:
        """Find the id of a token by its text in the vocabulary."""
        return self._tokenizer.token_to_id(text)

    @property
    def mask_token_id(self) -> int | None:
        """Find the id of the mask token that the model's files name."""
        return self.token_id(self._special("mask_token"))

    def to_json(self) -> str:
        """Give the whole tokenizer as its file holds it."""
        return str(self._tokenizer.to_str())

    def stream(self) -> StreamDecoder:
        """Start to decode one stream of tokens."""
        return StreamDecoder(self._tokenizer)

    def apply_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **more: object
    ) -> str:
        """Lay out messages by the model's chat template; `more` are the template's own variables.

        Message contents may be lists of text parts. Raises UserError where there is no template, or it refuses.
        """
        template = self.chat_template
        if template is None:
            raise UserError("this model has no chat template; give a plain prompt.")
        flat = [{**message, "content": _flatten(message.get("content"))} for message in messages]
        special = {key: self._special(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        return _render(
            template, {**special, **more, "messages": flat, "add_generation_prompt": add_generation_prompt}
        )

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **more: object
    ) -> list[int]:
        """Lay out and encode messages; the template itself writes the first token of models that want one."""
        text = self.apply_chat(messages, add_generation_prompt=add_generation_prompt, **more)
        return self.encode(text, special=False)

    @property
    def chat_template(self) -> str | None:
        """Find the default template among one, or several named ones."""
        value = self._settings.get("chat_template")
        if isinstance(value, list):
            value = {item.get("name"): item.get("template") for item in value}.get("default")
        return value if isinstance(value, str) else None

    def _special(self, key: str) -> str:
        """Read the text of a special token, written plainly or as an object."""
        value = self._settings.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""


@cache
def _byte_alphabet() -> dict[str, int]:
    """Map the letters of byte-level vocabularies to bytes: printable ones are themselves, others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _flatten(content: object) -> str:
    """Join the text parts of a message; raises UserError for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise UserError("a message holds a part that is no text; this model reads text only.")
    return "".join(text for text in texts if isinstance(text, str))


def _render(template: str, variables: dict[str, Any]) -> str:
    """Run a template in a sandbox, with the functions that published templates call."""
    # Imported here: a start without a chat saves its 50 ms.
    from jinja2 import TemplateError  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).astimezone().strftime(form)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    try:
        return environment.from_string(template).render(**variables)
    except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise UserError(f"the model's chat template refuses these messages: {error}.") from None
