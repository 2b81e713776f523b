"""Prompts to send to a real server: of a data set, or words drawn to the lengths of a workload."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fsm_spec.errors import UserError
from fsm_spec.simulator.workload import Requests

# Common words, each a token or two in most vocabularies.
# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house",
)
# fmt: on


@dataclass(frozen=True)
class Prompt:
    """Hold one prompt: a text, token ids, or the messages of a chat."""

    content: str | list[int] | list[dict[str, Any]]

    def body(self, *, chat: bool) -> dict[str, Any]:
        """Give it as the part of a request."""
        if isinstance(self.content, list) and self.content and isinstance(self.content[0], dict):
            return {"messages": self.content}
        return {"messages": [{"role": "user", "content": self.content}]} if chat else {"prompt": self.content}


@dataclass(frozen=True)
class Prompts:
    """Make the prompts of a run; `rows` of a data set come in turn, without one words are drawn."""

    rows: tuple[dict[str, Any], ...] = ()
    seed: int = 0
    chat: bool = False

    @classmethod
    def read(cls, path: Path | None, seed: int, *, chat: bool) -> Prompts:
        """Read a data set of JSON Lines with `prompt` or `messages`, and perhaps `max_tokens`; raises UserError."""
        if path is None:
            return cls(seed=seed, chat=chat)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise UserError(f"{path}: cannot be read ({error}); name another file after --dataset") from None
        rows = tuple(
            _row(path, number, line, chat=chat) for number, line in enumerate(lines, 1) if line.strip()
        )
        if not rows:
            raise UserError(f"{path}: holds no prompt; write one JSON object a line")
        return cls(rows, seed, chat)

    def outputs(self, requests: Requests) -> Requests:
        """Put the lengths that a data set gives in place of those drawn."""
        tokens = requests.output_tokens.copy()
        for index in range(len(tokens)):
            row = self.rows[index % len(self.rows)] if self.rows else {}
            tokens[index] = row.get("max_tokens", tokens[index])
        return Requests(requests.arrival_ns, requests.prompt_tokens, tokens, requests.concurrency)

    async def make(self, client: httpx.AsyncClient, requests: Requests) -> list[Prompt]:
        """Give the prompt of each request."""
        if self.rows:
            count = len(requests)
            rows = [self.rows[index % len(self.rows)] for index in range(count)]
            return [Prompt(row.get("messages") or row["prompt"]) for row in rows]
        return [
            await self._drawn(client, int(tokens), index)
            for index, tokens in enumerate(np.maximum(requests.prompt_tokens, 1).tolist())
        ]

    async def _drawn(self, client: httpx.AsyncClient, tokens: int, index: int) -> Prompt:
        """Draw words; where the server tokenizes, exactly so many tokens of them."""
        source = random.Random(f"{self.seed} {index}")
        text = " ".join(source.choice(WORDS) for _ in range(tokens))
        if self.chat:
            return Prompt(text)
        response = await client.post("/tokenize", json={"prompt": text})
        found = response.json().get("tokens") if response.status_code == 200 else None
        return Prompt(found[:tokens] if isinstance(found, list) and len(found) >= tokens else text)


def _row(path: Path, number: int, line: str, *, chat: bool) -> dict[str, Any]:
    """Read one line of a data set."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    sound = isinstance(row, dict) and (isinstance(row.get("prompt"), str) or (chat and row.get("messages")))
    if not sound or not isinstance(row.get("max_tokens", 1), int):
        wanted = "prompt or messages" if chat else "prompt"
        raise UserError(f"{path}:{number}: is no JSON object with {wanted}; fix the line")
    found: dict[str, Any] = row
    return found
