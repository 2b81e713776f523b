"""Answers in OpenAI's shapes: whole ones, and the chunks of streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fsm_spec.executor.generate import Result
from fsm_spec.executor.logprobs import TokenLogprob
from fsm_spec.executor.server.intake import Order
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.served import Served

CHAT = "chatcmpl"
_LEAST = -9999.0


@dataclass
class Choice:
    """Gather one choice while it grows; `said` is the text a client of a stream already has."""

    job: Job
    echo: str = ""
    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    result: Result | None = None
    error: Refusal | None = None
    said: int = 0
    offset: int = 0

    def add(self, delta: Delta) -> None:
        """Take what came."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.result = delta.result or self.result
        self.error = delta.error or self.error


class Writer:
    """Write the answer of one order."""

    def __init__(self, order: Order, served: Served) -> None:
        self.order = order
        self.served = served
        # The policy may be switched while a stream goes on; its chunks agree.
        self.fingerprint = served.fingerprint
        echoes = order.echoes or [""] * len(order.jobs)
        self.choices = [Choice(job, echo) for job, echo in zip(order.jobs, echoes, strict=True)]
        self.chat = order.kind == CHAT

    # Whole answers ---------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Give the answer, once all choices are at their end."""
        choices = [self._chat_choice(each) if self.chat else self._choice(each) for each in self.choices]
        answer = self._head("chat.completion" if self.chat else "text_completion", choices)
        answer["usage"] = self.usage()
        return self._with_statistics(answer)

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        reason = self._reason(choice)
        if self.order.tools is not None:
            said, calls = self.order.tools.read(choice.text)
            if calls:
                message |= {"content": said or None, "tool_calls": calls}
                reason = "tool_calls"
        return {
            "index": choice.job.index,
            "message": message,
            "logprobs": self._chat_logprobs(choice.logprobs),
            "finish_reason": reason,
            "stop_reason": choice.result.stop_reason if choice.result else None,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        hidden = self.order.hidden
        return {
            "index": choice.job.index,
            "text": choice.echo + ("" if hidden else choice.text),
            "logprobs": self._logprobs(choice, choice.prompt_logprobs, [] if hidden else choice.logprobs),
            "finish_reason": self._reason(choice),
            "stop_reason": choice.result.stop_reason if choice.result and not hidden else None,
        }

    def _reason(self, choice: Choice) -> str | None:
        if choice.result is None:
            return None
        return "length" if self.order.hidden else choice.result.finish_reason

    # Streams ---------------------------------------------------------------------------------------------------

    def opening(self) -> list[dict[str, Any]]:
        """Give the chunks that come before any token."""
        if self.chat:
            delta = {"role": "assistant", "content": ""}
            return [self._chunk({"index": each.job.index, "delta": delta}) for each in self.choices]
        if self.order.logprobs:
            return []
        return [
            self._chunk({"index": each.job.index, "text": each.echo, "logprobs": None})
            for each in self.choices
            if each.echo
        ]

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """Give the chunks of what came for a choice; the last one has the reason of its end."""
        choice.add(delta)
        return self._chat_chunks(choice, delta) if self.chat else self._text_chunks(choice, delta)

    def _text_chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        hidden = self.order.hidden
        text = "" if hidden else delta.text
        if self.order.logprobs and choice.echo and not choice.said:
            text = choice.echo + text
            choice.said = 1
        logprobs = self._logprobs(choice, delta.prompt_logprobs, [] if hidden else delta.logprobs)
        if not (text or delta.logprobs or delta.last or self.order.usage_always):
            return []
        reason = self._reason(choice)
        chunk = {"index": choice.job.index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        if reason is not None and choice.result is not None:
            chunk["stop_reason"] = None if hidden else choice.result.stop_reason
        return [self._chunk(chunk)]

    def _chat_chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        tools = self.order.tools
        ended = choice.result is not None
        text = delta.text
        calls: list[dict[str, Any]] = []
        if tools is not None:
            text, calls = self._said(choice, tools.opening, ended=ended)
        chunks = []
        if text or delta.logprobs or (self.order.usage_always and delta.tokens):
            content: dict[str, Any] = {"content": text}
            chunks.append(
                {"index": choice.job.index, "delta": content, "logprobs": self._chat_logprobs(delta.logprobs)}
            )
        for number, call in enumerate(calls):
            content = {"tool_calls": [{"index": number, **call}]}
            chunks.append({"index": choice.job.index, "delta": content, "logprobs": None})
        if ended:
            assert choice.result is not None
            reason = "tool_calls" if calls else self._reason(choice)
            last: dict[str, Any] = {"index": choice.job.index, "delta": {}, "logprobs": None}
            chunks.append(last | {"finish_reason": reason, "stop_reason": choice.result.stop_reason})
        return [self._chunk(chunk) for chunk in chunks]

    def _said(self, choice: Choice, opening: str, *, ended: bool) -> tuple[str, list[dict[str, Any]]]:
        """Part a growing text into what can be said now, and the calls at its end; a call is held back."""
        assert self.order.tools is not None
        if ended:
            said, calls = self.order.tools.read(choice.text)
            text = said[choice.said :]
            choice.said = len(said)
            return text, calls
        at = choice.text.find(opening)
        until = at if at >= 0 else len(choice.text) - _overlap(choice.text, opening)
        # Blanks in front of a call are not said, so they wait for what follows them.
        until = len(choice.text[:until].rstrip())
        text = choice.text[choice.said : until]
        choice.said = max(choice.said, until)
        return text, []

    def closing(self) -> list[dict[str, Any]]:
        """Give the chunk after the last choice, where one was asked for."""
        if not (self.order.usage or self.order.statistics):
            return []
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        chunk = self._head(kind, [])
        if self.order.usage:
            chunk["usage"] = self.usage()
        return [self._with_statistics(chunk)]

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        chunk = self._head(kind, [{"finish_reason": None, **choice}])
        if self.order.usage_always:
            chunk["usage"] = self.usage()
        elif self.order.usage:
            chunk["usage"] = None
        return chunk

    # Parts -----------------------------------------------------------------------------------------------------

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.order.request_id,
            "object": kind,
            "created": self.order.created,
            "model": self.served.name,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def usage(self) -> dict[str, Any]:
        """Count tokens; `cached_tokens` are those of the prompts whose KV was there already, for every choice."""
        completion = 0 if self.order.hidden else sum(choice.tokens for choice in self.choices)
        cached = 0
        for first in range(0, len(self.choices), self.order.n):
            results = [choice.result for choice in self.choices[first : first + self.order.n]]
            cached += min((result.cached_tokens for result in results if result), default=0)
        return {
            "prompt_tokens": self.order.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.order.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def outcome(self) -> dict[str, Any]:
        """Say for the log what was given; `abort` is the end of a choice whose client has left."""
        reasons = [
            self._reason(choice) or (choice.error.code if choice.error else None) or "abort"
            for choice in self.choices
        ]
        usage = self.usage()
        return {
            "completion_tokens": 0 if self.order.hidden else sum(job.emitted for job in self.order.jobs),
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "finish_reason": ",".join(dict.fromkeys(reasons)),
        }

    def _with_statistics(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add, by choice, how well drafts served it."""
        if self.order.statistics:
            answer["speculation"] = [_statistics(choice) for choice in self.choices]
        return answer

    def _chat_logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        if not self.order.logprobs:
            return None
        content = [
            {**self._token(each.token, each.logprob), "top_logprobs": [self._token(*top) for top in each.top]}
            for each in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.served.tokenizer.token(token)
        return {
            "token": text,
            "logprob": _finite(logprob),
            "bytes": list(self.served.tokenizer.token_bytes(token)),
        }

    def _logprobs(
        self, choice: Choice, prompt: list[TokenLogprob], emitted: list[TokenLogprob]
    ) -> dict[str, Any] | None:
        """Give log-probabilities in the form of completions; the first token of a prompt has none."""
        if not self.order.logprobs:
            return None
        form: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        if choice.echo and not choice.offset:
            self._append(choice, form, TokenLogprob(choice.job.prompt[0], 0.0, ()), scored=False)
        for entry in (*prompt, *emitted):
            self._append(choice, form, entry)
        return form

    def _append(
        self, choice: Choice, form: dict[str, list[Any]], entry: TokenLogprob, *, scored: bool = True
    ) -> None:
        show = self.served.tokenizer.token
        text = show(entry.token)
        # As OpenAI does, the token itself is among the most probable ones, whatever its rank.
        tops = {show(token): _finite(value) for token, value in (*entry.top, (entry.token, entry.logprob))}
        form["tokens"].append(text)
        form["token_logprobs"].append(_finite(entry.logprob) if scored else None)
        form["top_logprobs"].append(tops if scored else None)
        form["text_offset"].append(choice.offset)
        choice.offset += len(text)


def _statistics(choice: Choice) -> dict[str, Any]:
    result = choice.result
    if result is None:
        return {"index": choice.job.index}
    return {
        "index": choice.job.index,
        "rounds": result.rounds,
        "forwards": result.forwards,
        "acceptance_length": result.acceptance_length,
        "tokens_per_forward": result.tokens_per_forward,
    }


def _finite(logprob: float) -> float:
    """Give a number that JSON has: what is impossible, or no number at all, has the least one of OpenAI's."""
    return max(_LEAST, logprob)  # NaN is above nothing


def _overlap(text: str, opening: str) -> int:
    """Count the characters at the end of a text that may begin a call."""
    return next((size for size in range(len(opening) - 1, 0, -1) if text.endswith(opening[:size])), 0)
