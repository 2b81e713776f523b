"""From what a client sent to what the engine runs: prompts, sampling options, grammars, one job a choice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_spec.errors import UserError
from fsm_spec.executor.generate import Options
from fsm_spec.executor.grammar import Kind, any_json
from fsm_spec.executor.request import Controls
from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.protocol import ChatRequest, CompletionRequest, Message, SamplingRequest
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.tools import ToolFormat, tools_of
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.law import SamplingParams

# OpenAI's default for completions; a chat runs as long as the context has room.
COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Run:
    """Hold what all jobs of a request share; `grammar` is compiled."""

    options: Options
    grammar: str | None
    client: str
    priority: int


@dataclass
class Order:
    """Hold one request on its way: its jobs, prompt by prompt and `n` choices of each, and what its answer needs.

    `echoes` are the texts that choices begin with; `hidden` counts tokens that a job runs only to score its prompt.
    """

    request_id: str
    kind: str
    created: int
    n: int
    jobs: list[Job]
    prompt_tokens: int
    stream: bool = False
    usage: bool = False
    usage_always: bool = False
    statistics: bool = False
    logprobs: bool = False
    echoes: list[str] = field(default_factory=list)
    hidden: int = 0
    tools: ToolFormat | None = None
    ready: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)


def completion_order(request: CompletionRequest, served: Served, request_id: str, client: str) -> Order:
    """Lay out a completion; raises Refusal for what cannot be served."""
    served.require_model(request.model)
    prompts = _prompts(request, served)
    echo = bool(request.echo)
    scores_prompt = echo and request.logprobs is not None
    wanted = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    # A prompt is scored by its prefill, which gives a first token; with max_tokens 0 nobody sees that.
    hidden = int(scores_prompt and wanted == 0)
    limits = [served.limit(len(prompt), wanted + hidden, "max_tokens", "prompt") for prompt in prompts]
    options = _options(request, served, request.logprobs)
    if scores_prompt:
        options = replace(options, prompt_logprobs=True)
    order = _order("cmpl", request, request_id, prompts)
    run = Run(options, _grammar(request, served), client, request.priority or 0)
    order.jobs = _jobs(request, served, order, prompts, limits, run)
    order.logprobs = request.logprobs is not None
    order.hidden = hidden
    for job in order.jobs:
        job.counted = not hidden
    if echo:
        texts = [served.tokenizer.decode(prompt) for prompt in prompts]
        order.echoes = [text for text in texts for _ in range(order.n)]
    return order


def chat_order(request: ChatRequest, served: Served, request_id: str, client: str) -> Order:
    """Lay out a chat; raises Refusal for what cannot be served."""
    served.require_model(request.model)
    if request.top_logprobs is not None and not request.logprobs:
        raise Refusal("top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise Refusal("max_tokens and max_completion_tokens differ; give one", "max_tokens", "invalid_value")
    tools = tools_of(request, served.tokenizer)
    grammar = _grammar(request, served)
    if tools is not None and tools.grammar is not None:
        if grammar is not None:
            raise Refusal(
                "tool_choice and response_format exclude each other", "tool_choice", "invalid_value"
            )
        grammar = _compiled(served, "lark", tools.grammar, "tools")
    prompt = chat_tokens(request.messages, served, tools)
    param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    limit = served.limit(len(prompt), wanted, param, "messages")
    top = (request.top_logprobs or 0) if request.logprobs else None
    order = _order("chatcmpl", request, request_id, [prompt])
    run = Run(_options(request, served, top), grammar, client, request.priority or 0)
    order.jobs = _jobs(request, served, order, [prompt], [limit], run)
    order.logprobs = bool(request.logprobs)
    order.tools = tools
    return order


def chat_tokens(messages: list[Message], served: Served, tools: ToolFormat | None = None) -> list[int]:
    """Lay out a chat by the model's template; raises Refusal where it has none, or refuses the messages."""
    given = [message.model_dump(exclude_none=True) for message in messages]
    for message in given:
        message.setdefault("content", None)
        for call in message.get("tool_calls", ()):
            # Templates write arguments as JSON themselves.
            call["function"]["arguments"] = _parsed(call["function"]["arguments"])
    more: dict[str, Any] = {} if tools is None else {"tools": tools.described}
    try:
        return served.tokenizer.encode_chat(given, **more)
    except UserError as error:
        raise Refusal(str(error), "messages", "invalid_value") from None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _prompts(request: CompletionRequest, served: Served) -> list[list[int]]:
    """Give the token ids of every prompt."""
    given = request.prompt
    listed: list[Any] = (
        given if isinstance(given, list) and not (given and isinstance(given[0], int)) else [given]
    )
    if not listed:
        raise Refusal("the list of prompts is empty; give at least one", "prompt", "invalid_value")
    prompts = [served.tokenizer.encode(each) if isinstance(each, str) else each for each in listed]
    vocabulary = served.config.vocab
    for prompt in prompts:
        require_tokens(prompt, vocabulary, "prompt")
    return prompts


def require_tokens(tokens: list[int], vocabulary: int, param: str) -> None:
    """Refuse ids that the model does not have."""
    worst = max(tokens, default=0)
    if worst >= vocabulary:
        raise Refusal(
            f"token {worst} is out of range; the model has 0 to {vocabulary - 1}", param, "invalid_value"
        )


def _order(kind: str, request: SamplingRequest, request_id: str, prompts: list[list[int]]) -> Order:
    if request.best_of not in (None, request.n or 1):
        raise Refusal("best_of must equal n: every choice is returned", "best_of", "invalid_value")
    stream = bool(request.stream)
    if request.stream_options is not None and not stream:
        raise Refusal("stream_options needs stream: true", "stream_options", "invalid_value")
    usage = request.stream_options
    return Order(
        request_id=request_id,
        kind=kind,
        created=int(time.time()),
        n=request.n or 1,
        jobs=[],
        prompt_tokens=sum(len(prompt) for prompt in prompts),
        stream=stream,
        usage=usage is not None and usage.include_usage,
        usage_always=usage is not None and usage.continuous_usage_stats,
        statistics=bool(request.speculation_stats),
    )


def _options(request: SamplingRequest, served: Served, logprobs: int | None) -> Options:
    """Give how all choices of a request are sampled, and where they end."""
    if logprobs is not None:
        served.require_order("logprobs")
    temperature = 1.0 if request.temperature is None else request.temperature
    sampling = SamplingParams(
        temperature,
        max(0, request.top_k or 0),
        1.0 if request.top_p is None else request.top_p,
        request.min_p or 0.0,
    )
    extra = tuple(request.stop_token_ids or ())
    require_tokens(list(extra), served.config.vocab, "stop_token_ids")
    ends = () if request.ignore_eos else served.config.eos_token_ids
    served.require_stop_ids(len({*ends, *extra}))
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Options(
        sampling=sampling,
        stop_ids=(*ends, *extra),
        stop=tuple(stop),
        include_stop=bool(request.include_stop_str_in_output),
        controls=Controls(_adjustment(request, served), request.min_tokens or 0),
        logprobs=logprobs,
    )


def _adjustment(request: SamplingRequest, served: Served) -> Adjustment:
    """Give penalties and bias; raises Refusal for a token that is none, or a spec that cannot count tokens."""
    adjustment = Adjustment(
        request.presence_penalty or 0.0,
        request.frequency_penalty or 0.0,
        1.0 if request.repetition_penalty is None else request.repetition_penalty,
        tuple(sorted(_bias(request, served).items())),
    )
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        if adjustment.reads_text and getattr(request, name) is not None:
            served.require_judged(name)
    return adjustment


def _bias(request: SamplingRequest, served: Served) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < served.config.vocab):
            last = served.config.vocab - 1
            raise Refusal(
                f"logit_bias: {key!r} is no token id from 0 to {last}", "logit_bias", "invalid_value"
            )
        found[int(key)] = value
    return found


def _grammar(request: SamplingRequest, served: Served) -> str | None:
    """Compile what `response_format` asks for."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "regex":
        return _compiled(served, "regex", form.pattern or "", "response_format")
    schema = any_json() if form.json_schema is None else json.dumps(form.json_schema.schema_)
    return _compiled(served, "json_schema", schema, "response_format")


def _compiled(served: Served, kind: Kind, text: str, param: str) -> str:
    served.require_judged(param)
    try:
        return served.compiler.check(kind, text)
    except UserError as error:
        raise Refusal(str(error), param, "invalid_value") from None


def _jobs(
    request: SamplingRequest,
    served: Served,
    order: Order,
    prompts: list[list[int]],
    limits: list[int],
    run: Run,
) -> list[Job]:
    """Make a job for each choice of each prompt."""
    if run.grammar is not None and request.ignore_eos:
        raise Refusal("ignore_eos would not let the grammar end the text", "ignore_eos", "invalid_value")
    if run.options.controls.min_tokens > min(limits):
        raise Refusal(f"min_tokens is above the limit of {min(limits)}", "min_tokens", "invalid_value")
    # Before they are made: a short body can ask for a hundred thousand.
    costs = (len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    served.require_room(order.n * len(prompts), order.n * sum(costs))
    now = time.perf_counter()
    limits_s = {504: served.settings.timeout, 408: request.timeout}
    shortest = min(((each, late) for late, each in limits_s.items() if each is not None), default=None)
    jobs: list[Job] = []
    for prompt, limit in zip(prompts, limits, strict=True):
        for choice in range(order.n):
            controls = run.options.controls
            if run.grammar is not None:
                controls = replace(controls, grammar=served.compiler.start(run.grammar))
            seed = secrets.randbits(63) if request.seed is None else choice_seed(request.seed, choice)
            options = replace(run.options, max_tokens=limit, seed=seed, controls=controls)
            job = Job(order.request_id, len(jobs), prompt, limit, options, order.n, run.client, run.priority)
            job.ready = order.ready
            job.arrived = now
            if shortest is not None:
                job.deadline, job.late = now + shortest[0], shortest[1]
            jobs.append(job)
    return jobs


def choice_seed(seed: int, choice: int) -> int:
    """Give the seed of a choice: the first has the request's own, the others a hash of both."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
