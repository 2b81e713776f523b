"""The text of one request while it grows: tokens decoded as they come, up to what ends the text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fsm_spec.executor.request import Request
from fsm_spec.executor.stop_text import StopText
from fsm_spec.executor.tokenizer import StreamDecoder

# The finish reason of a request whose tokens came from no law, and what is said of it.
FAULT = "error"
NOT_FINITE = "the model's logits became NaN for this text, as its numbers overflow; try --dtype float32"
BROKEN_OFF = "the grammar allowed none of the model's tokens before the text was whole; give another grammar"


class TextStream:
    """Follow the text of a request; without a `decoder` its tokens are counted and none are shown.

    `stop` are strings that end the text before themselves, or behind with `include_stop`, which also keeps a stop
    token's text. `reason` says why the text is over, empty while it is not; `stop_reason` names the string or token,
    `fault` what went wrong where the reason is `FAULT`.
    """

    def __init__(
        self, request: Request, decoder: StreamDecoder | None, stop: Sequence[str], *, include_stop: bool
    ) -> None:
        self.request = request
        self.reason = ""
        self.stop_reason: str | int | None = None
        self.fault = ""
        self.seen = 0
        self._decoder = decoder
        self._include_stop = include_stop
        # Tokens before the least number wanted complete no stop string.
        self._stops = StopText(stop, include=include_stop, unread=request.controls.min_tokens - 1)
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """Give all that was certain so far."""
        return "".join(self._parts)

    def read(self) -> str:
        """Decode the tokens emitted since the last call; at a stop string, `seen` counts the tokens up to it."""
        tokens = self.request.emitted_since(self.seen)
        if not self._include_stop and tokens and tokens[-1] in self.request.stop_ids:
            # A stop token ends the text before itself; it is counted, but never shown.
            tokens.pop()
        if self._decoder is None:
            self.seen += len(tokens)
            return ""
        text, read = self._stops.push(self._decoder.push(tokens))
        self.seen += read
        self._parts.append(text)
        if self._stops.found:
            self.reason = "stop"
            self.stop_reason = self._stops.found
        return text

    def fail(self, fault: str) -> None:
        """End the text by a fault."""
        self.reason, self.fault = FAULT, fault

    def close(self, own_ends: Collection[int]) -> str:
        """Let out what was held back of a text that no stop string ended; `own_ends` are the model's end tokens."""
        text = self.request.text
        last = int(text[-1])
        if len(text) > self.request.prompt and last in self.request.stop_ids:
            self.reason = "stop"
            self.stop_reason = None if last in own_ends else last
        else:
            self.reason = "length"
        grammar = self.request.controls.grammar
        if grammar is not None and grammar.broken_off(text[self.request.prompt :]):
            self.fail(BROKEN_OFF)
        if self._decoder is None:
            return ""
        rest, _ = self._stops.push([self._decoder.finish()])
        rest += self._stops.finish()
        self._parts.append(rest)
        return rest
