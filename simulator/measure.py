"""Measure a running OpenAI-compatible server with a simulator's workload; the results are a simulation's results.

Requests arrive, wait and finish by the clock of this process. What a client cannot see (rounds, forwards, drafts) is
taken from the answers and the metrics of servers that tell it, and is missing of others.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from fsm_spec.errors import UserError
from fsm_spec.simulator.metrics import RequestLog, Summary, summarise
from fsm_spec.simulator.prompts import Prompt, Prompts
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.workload import Requests
from fsm_spec.wording import counted

# A client that waits longer than this for the next piece of an answer has lost its server.
_PATIENCE_S = 600.0
_COUNTERS = {
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "launches": "fsm_spec:launches_total",
}
_LONGEST_MESSAGE = 300  # letters of a server's own words


def server_address(text: str) -> str:
    """Complete an address to one with a scheme, `http://` where none is named; raises UserError."""
    address = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"--url {text} is no address of a server; write http://HOST:PORT")
    return address.rstrip("/")


@dataclass(frozen=True)
class Target:
    """Say which server is measured, and what is asked of it."""

    url: str
    model: str | None = None
    key: str | None = None
    chat: bool = False
    temperature: float = 0.0
    ignore_eos: bool = True

    def client(self) -> httpx.AsyncClient:
        """Open a client with as many connections as requests are open."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(
            base_url=self.url.removesuffix("/v1"),
            headers=headers,
            timeout=_PATIENCE_S,
            limits=limits,
        )


@dataclass
class Failure:
    """Count requests that failed for one cause; `message` is what the server said of the first."""

    message: str
    count: int = 0


@dataclass
class Measured:
    """Hold a finished measurement; `about` is what the server says of itself, `failed` are failures by cause."""

    summary: Summary
    timeline: Timeline
    log: RequestLog
    about: dict[str, Any]
    launches: int | None
    failed: dict[str, Failure]


@dataclass
class _Run:
    """Follow the requests of one measurement; times are nanoseconds since its start."""

    target: Target
    client: httpx.AsyncClient
    requests: Requests
    prompts: list[Prompt]
    log: RequestLog
    speculation: bool
    tick: Callable[[int], None]
    started: int = field(default_factory=time.perf_counter_ns)
    # (time, change of requests in flight, tokens) of everything that happened.
    events: list[tuple[int, int, int]] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)
    ended: int = 0

    def now(self) -> int:
        return time.perf_counter_ns() - self.started

    async def run(self) -> None:
        """Send all requests when they are due, or one after another of a closed loop."""
        if not self.requests.concurrency:
            await asyncio.gather(*(self._later(index) for index in range(len(self.requests))))
            return
        order = iter(range(len(self.requests)))

        async def user() -> None:
            for index in order:
                await self._one(index)

        await asyncio.gather(*(user() for _ in range(self.requests.concurrency)))

    async def _later(self, index: int) -> None:
        due = int(self.requests.arrival_ns[index])
        await asyncio.sleep(max(0, due - self.now()) / 1e9)
        await self._one(index)

    async def _one(self, index: int) -> None:
        log = self.log
        log.arrival_ns[index] = begun = self.now()
        self.events.append((begun, 1, 0))
        pieces: list[int] = []
        tokens = 0
        try:
            async with self.client.stream("POST", self._path(), json=self._body(index)) as response:
                await _require(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        tokens = self._piece(index, json.loads(line[6:]), pieces) or tokens
        except (httpx.HTTPError, _Refused) as error:
            cause = error.cause if isinstance(error, _Refused) else type(error).__name__
            self.failed.setdefault(cause, Failure(str(error))).count += 1
            self.events.append((self.now(), -1, 0))
        else:
            self._finish(index, pieces, tokens or len(pieces))
        self.ended += 1
        self.tick(self.ended)

    def _path(self) -> str:
        return "/v1/chat/completions" if self.target.chat else "/v1/completions"

    def _body(self, index: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self.prompts[index].body(chat=self.target.chat),
            "max_tokens": int(self.requests.output_tokens[index]),
            "temperature": self.target.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.target.model is not None:
            body["model"] = self.target.model
        if self.target.ignore_eos:
            body["ignore_eos"] = True
        if self.speculation:
            body["speculation_stats"] = True
        return body

    def _piece(self, index: int, chunk: dict[str, Any], pieces: list[int]) -> int:
        """Take one chunk; give the tokens of the whole answer where it tells them."""
        if "error" in chunk:
            raise _Refused(str(chunk["error"].get("code")), error_sentence(chunk))
        said = [each.get("text") or each.get("delta", {}).get("content") for each in chunk.get("choices", ())]
        if any(said):
            pieces.append(self.now())
        for told in chunk.get("speculation", ()):
            self.log.rounds[index], self.log.forwards[index] = told["rounds"], told["forwards"]
        usage = chunk.get("usage") or {}
        if "prompt_tokens" in usage:
            self.log.prompt[index] = usage["prompt_tokens"]
        return int(usage.get("completion_tokens", 0))

    def _finish(self, index: int, pieces: list[int], tokens: int) -> None:
        ended = self.now()
        log = self.log
        log.finish_ns[index] = ended
        log.emitted[index] = tokens
        log.prefill_emitted[index] = min(1, tokens)
        if pieces:
            log.first_token_ns[index] = pieces[0]
        # The pieces of an answer say when, not how many: its tokens are spread evenly over them.
        shares = np.diff(np.linspace(0, tokens, len(pieces) + 1).astype(np.int64)).tolist()
        self.events += [(when, 0, share) for when, share in zip(pieces, shares, strict=True)]
        self.events.append((ended, -1, 0))


class _Refused(Exception):
    """Report an answer that is none: its cause in a word or two, and the server's own words."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


async def _require(response: httpx.Response) -> None:
    """Raise where a request was refused."""
    if response.status_code == 200:
        return
    text = (await response.aread()).decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    raise _Refused(f"status {response.status_code}", error_sentence(body))


def error_sentence(body: Any) -> str:  # noqa: ANN401 -- whatever a server answers
    """Find the sentence in an error body, on one line: OpenAI's form, FastAPI's `detail`, or the body itself."""
    if isinstance(body, dict):
        error = body.get("error", body)
        body = error.get("message") or body.get("detail") or body if isinstance(error, dict) else error
    text = " ".join((body if isinstance(body, str) else json.dumps(body)).split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} ..."


def failures(failed: Mapping[str, Failure]) -> tuple[str, ...]:
    """Write a sentence for each cause: `10 requests failed, status 429: the queue is full`."""
    return tuple(
        f"{counted(each.count, 'request')} failed, {cause}{f': {each.message}' if each.message else ''}"
        for cause, each in failed.items()
    )


async def measure(
    target: Target, requests: Requests, prompts: Prompts, tick: Callable[[int], None]
) -> Measured:
    """Send a workload to a server and gather what came; `tick` hears how many requests have ended.

    Raises UserError where the server cannot be reached or answers no request.
    """
    async with target.client() as client:
        about = await _about(client, target)
        before = await _counters(client)
        made = await prompts.make(client, requests)
        run = _Run(target, client, requests, made, RequestLog.of(requests), bool(about), tick)
        await run.run()
        after = await _counters(client)
    if not run.log.finished.any():
        raise UserError(f"{target.url} answered no request; {'; '.join(failures(run.failed))}")
    moved = {name: after[name] - before[name] for name in _COUNTERS if name in before and name in after}
    # Which request drafts and preemptions belong to is not known: the first stands for all.
    for name in ("drafted", "accepted", "preemptions"):
        getattr(run.log, name)[0] = moved.get(name, 0)
    end = max(when for when, _, _ in run.events)
    launches = moved.get("launches")
    return Measured(summarise(run.log, end), _timeline(run.events, end), run.log, about, launches, run.failed)


async def _about(client: httpx.AsyncClient, target: Target) -> dict[str, Any]:
    """Ask a server for its spec; other servers have none. Raises UserError where nobody answers."""
    try:
        response = await client.get("/v1/fsm")
    except httpx.HTTPError as error:
        raise UserError(
            f"{target.url} cannot be reached ({type(error).__name__}); start the server first"
        ) from None
    if response.status_code == 401:
        raise UserError(f"{target.url} asks for an API key; give --api-key")
    found: dict[str, Any] = response.json() if response.status_code == 200 else {}
    return found


async def _counters(client: httpx.AsyncClient) -> dict[str, int]:
    """Read the counters that servers with vLLM's names have."""
    found: dict[str, int] = {}
    try:
        response = await client.get("/metrics")
    except httpx.HTTPError:
        return found  # a server that was lost on the way; its requests say so
    for line in response.text.splitlines() if response.status_code == 200 else ():
        for name, metric in _COUNTERS.items():
            if line.startswith((metric + "{", metric + " ")):
                found[name] = found.get(name, 0) + int(float(line.rpartition(" ")[2]))
    return found


def _timeline(events: Sequence[tuple[int, int, int]], end: int) -> Timeline:
    """Turn what happened into series; a client sees requests in flight, waiting ones among them."""
    line = Timeline(("running", "waiting"), ("tokens",))
    running = 0
    for when, change, tokens in sorted(events):
        running += change
        line.record(when, (running, 0), (tokens,))
    line.close(end)
    return line
