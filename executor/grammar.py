"""Grammars: which tokens may follow a text, so that the whole becomes JSON of a schema or matches a regex.

The automaton is llguidance's; here it follows a request's emitted tokens, and looks ahead along drafts and back.
End tokens are not its business: a text may end where the grammar accepts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.executor.tokenizer import Tokenizer

Kind = Literal["json_schema", "regex", "lark"]


class Grammar:
    """Follow one request through a grammar; not shared between requests. `compiled` starts another like it."""

    def __init__(
        self,
        matcher: Any,  # noqa: ANN401 -- untyped library
        vocabulary: int,
        ends: Sequence[int],
        compiled: str = "",
    ) -> None:
        self.compiled = compiled
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._ends = list(ends)
        self._consumed = 0

    def allowed(self, output: NDArray[np.int64], ahead: Sequence[int]) -> torch.Tensor | None:
        """Tell which tokens may follow the emitted `output` and then `ahead`: bool [V].

        None where `ahead` breaks the grammar or ends the text: nothing that follows can be emitted.
        """
        self._follow(output)
        if any(token in self._ends for token in ahead):
            return None
        # Token by token: a grammar that is complete takes nothing more, and says so only when asked.
        taken = self._matcher.try_consume_tokens(list(ahead)) if ahead else 0
        try:
            return self._mask() if taken == len(ahead) else None
        finally:
            if taken:
                self._matcher.rollback(taken)

    def _follow(self, output: NDArray[np.int64]) -> None:
        """Consume what was emitted since the last look."""
        for token in output[self._consumed :].tolist():
            if token not in self._ends and not self._matcher.is_stopped():
                self._matcher.consume_token(token)
        self._consumed = len(output)

    def _mask(self) -> torch.Tensor:
        allowed = np.zeros(self._vocabulary, np.bool_)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, bitorder="little", count=None)[: self._vocabulary].astype(np.bool_)
            allowed[: len(found)] = found
        # Asked for its tokens, an automaton that has none offers the end by itself.
        allowed[self._ends] = False
        allowed[self._ends] = self._matcher.is_accepting() or not allowed.any()
        return torch.from_numpy(allowed)

    def broken_off(self, output: NDArray[np.int64]) -> bool:
        """Tell whether a text ended before it was whole, as the grammar left the model no token to go on with."""
        if not (len(output) and int(output[-1]) in self._ends):
            return False
        self._follow(output)
        return not self._matcher.is_accepting()


class GrammarCompiler:
    """Compile grammars for one tokenizer; the tables of its vocabulary are made once (half a second for 49,152)."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = tuple(ends)
        self._tables: Any = None

    def check(self, kind: Kind, text: str) -> str:
        """Give the compiled form of a grammar; raises UserError where it is none, or no text of the model fits it."""
        from llguidance import LLMatcher  # noqa: PLC0415 -- only requests with a grammar need the library

        if not self._ends:
            raise UserError("this model has no end token, so that no grammar could end its text")
        make: Any = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }[kind]
        try:
            compiled: str = make(text)
        except ValueError as error:
            raise UserError(f"the grammar is refused: {_sentence(str(error))}") from None
        matcher = self._matcher(compiled)
        fault = matcher.get_error()
        if fault:
            raise UserError(f"the grammar is refused: {_sentence(fault)}")
        matcher.compute_bitmask()  # only then it knows whether anything can follow
        if matcher.is_stopped() and not matcher.is_accepting():
            raise UserError("the grammar is refused: no text of this model's tokens matches it")
        return compiled

    def start(self, compiled: str) -> Grammar:
        """Give the automaton of a checked grammar at its start."""
        return Grammar(self._matcher(compiled), self._vocabulary, self._ends, compiled)

    def _matcher(self, compiled: str) -> Any:  # noqa: ANN401 -- untyped library
        from llguidance import LLMatcher, LLTokenizer  # noqa: PLC0415 -- as above

        if self._tables is None:
            self._tables = LLTokenizer(
                self._tokenizer.to_json(), n_vocab=self._width(), eos_token=self._ends[0]
            )
        return LLMatcher(self._tables, compiled, log_level=0)

    def _width(self) -> int:
        return max(self._tokenizer.vocab, max(self._ends) + 1)


def any_json() -> str:
    """Give the schema of a JSON object of any content."""
    return json.dumps({"type": "object"})


def _sentence(text: str) -> str:
    """Give the first line, and where that only announces a reason, the last one that has it."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    last = (
        next((line for line in reversed(lines) if line.startswith("error:")), "")
        if lines[0].endswith(":")
        else ""
    )
    return (
        f"{lines[0].removesuffix(':')[:300]}: {last.removeprefix('error:').strip()[:300]}"
        if last
        else lines[0][:300]
    )
