"""Generation: requests in, text out. A session ties engine, runner, cache and tokenizer together.

The server drives the same session with many requests; `fsm-spec generate` drives it with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fsm_spec import prefix_cache as rules
from fsm_spec.engine import Engine, Iteration
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.drafting import DraftModel
from fsm_spec.executor.logprobs import Scores
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.drafter import Drafter
from fsm_spec.executor.models.rows import ForwardRows
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.page_holders import PageHolders
from fsm_spec.executor.prefix_cache import PrefixCache, view_of
from fsm_spec.executor.request import Controls, Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.synthetic import Synthetic, refuse_grammar
from fsm_spec.executor.text_stream import NOT_FINITE, TextStream
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.law import SamplingParams, SamplingRows
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter, header
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.executor.device.pages import DevicePages
    from fsm_spec.executor.device.resident import Resident
    from fsm_spec.executor.device.runner import DeviceRunner

# Ids looked at for a special token: models put theirs at the start or at the end of the vocabulary.
_FIRST_IDS, _LAST_IDS = 32, 512


class CausalModel(Protocol):
    """Be what a session needs of a model."""

    config: ModelConfig
    dtype: torch.dtype

    def forward(self, rows: ForwardRows, cache: Any) -> torch.Tensor:  # noqa: ANN401 -- the model's own kind of cache
        """Run rows, write their KV to their slots, and give logits [rows wanted, vocabulary]."""

    def forward_captured(
        self,
        rows: ForwardRows,
        cache: Any,  # noqa: ANN401 -- the model's own kind of cache
        capture: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run rows as `forward` does, and give hidden states [rows, width] of the named layers beside the logits."""


@dataclass(frozen=True)
class Options:
    """Say how a request is sampled and where it ends.

    `stop_ids` None means the model's own end tokens; `stop` are strings that end the text before themselves, or behind
    with `include_stop`, which also keeps a stop token's text. `logprobs` reports that many most probable tokens beside
    each emitted one (None: nothing), `prompt_logprobs` does so for the prompt.
    """

    max_tokens: int = 128
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    controls: Controls = field(default_factory=Controls)
    logprobs: int | None = None
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Result:
    """Hold what a request gave.

    `finish_reason`: `stop`, `length` or `abort`; `stop_reason`: the stop string or token that ended the text, None for
    the model's own end. `acceptance_length`: tokens emitted a round; the first token is the
    prefill's and no round. `tokens_per_forward`: tokens emitted by rounds over the target's forwards in those rounds.
    Both are None where no round ran.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    rounds: int
    acceptance_length: float | None
    tokens_per_forward: float | None
    prompt_tokens: int
    forwards: int
    cached_tokens: int = 0
    stop_reason: str | int | None = None


class Session:
    """Run requests under one table on one model: add them, iterate, and read what they gave.

    `pool` sizes the KV cache; `trace` receives what happens (see `fsm_spec/trace.py`); `drafters` are the draft
    models that the table names. `prefix_cache` keeps full pages for later requests whose text begins alike; raises
    UserError for a spec whose KV may not be found again. With `resident`, requests live on its device
    (`executor/device/`). `synthetic` says how many drafts stand, in place of the target's judgement.
    """

    def __init__(  # noqa: PLR0913 -- a session ties all parts together
        self,
        table: Table,
        model: CausalModel,
        tokenizer: Tokenizer | None = None,
        *,
        pool: Pool,
        policy: Policy | None = None,
        mask_id: int | None = None,
        operators: Operators | None = None,
        trace: TraceWriter | None = None,
        drafters: Mapping[str, Drafter] | None = None,
        prefix_cache: bool = False,
        resident: Resident | None = None,
        synthetic: Synthetic | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        config = model.config
        trained = [drafter.mask_token_id for drafter in (drafters or {}).values()]
        known = next((token for token in (mask_id, *trained) if token is not None), None)
        self.mask_id = default_mask_id(config, tokenizer) if known is None else known
        require_mask_id(self.mask_id, config)
        policy = policy or Policy()
        tiers = tiers_of(table, policy)
        require_children(tiers.largest, config)
        self.allocator: PageAllocator | DevicePages
        if resident is not None:
            resident = replace(resident, synthetic=synthetic)
        self.resident, self.synthetic = resident, synthetic
        self.prefixes: PrefixCache | None = None
        self.runner: Runner | DeviceRunner
        if resident is not None:
            assert isinstance(model, Transformer), "the resident runner moves the weights of a transformer"
            self.runner = resident.runner(tiers, model, drafters or {}, pool, policy, self.mask_id)
            self.allocator = self.runner.pages
        else:
            self.allocator = PageAllocator(pool.pages, pool.page_size)
            self.runner = Runner(
                tiers.largest,
                model,
                PagedCache(config, pool.pages, pool.page_size, model.dtype),
                self.allocator,
                vocabulary=config.vocab,
                mask_id=self.mask_id,
                operators=operators
                or Operators(
                    CounterChooser(),
                    rate=policy.rate,
                    synthetic=None if synthetic is None else synthetic.laws(),
                ),
                carry=tiers.carry,
                drafters={
                    name: DraftModel(
                        drafter, PagedCache(drafter.config, pool.pages, pool.page_size, drafter.dtype)
                    )
                    for name, drafter in (drafters or {}).items()
                },
            )
        if prefix_cache:
            view = view_of((config, model.dtype, *map(_identity, (drafters or {}).values())))
            self.prefixes = _prefixes(table, self.allocator, self.runner.requests, view)
        self.runner.prefixes = self.prefixes
        loop = Engine if resident is None else resident.engine(policy)
        self.engine = loop(table, policy, pool, self.runner, trace, prefixes=self.prefixes)
        self._streams: dict[int, TextStream] = {}
        self.launches = 0

    @property
    def table(self) -> Table:
        """Give the table that runs, of the tier in force."""
        return self.runner.table

    @property
    def config(self) -> ModelConfig:
        """Give the numbers of the model."""
        return self.model.config

    @property
    def pool(self) -> Pool:
        """Give the size of the KV pool."""
        return self.engine.pool

    @property
    def policy(self) -> Policy:
        """Give the scheduling policy in force."""
        return self.engine.policy

    @property
    def on_device(self) -> bool:
        """Tell whether requests live resident on a device."""
        return self.resident is not None

    @property
    def caches_prefixes(self) -> bool:
        """Tell whether full pages are kept for later texts that begin alike."""
        return self.prefixes is not None

    def pages_by_kind(self) -> dict[str, int]:
        """Count the pool's pages: with committed KV, held for the coming round, cached and held by nobody, and free."""
        engine = self.engine
        used = engine.used_pages
        committed = (
            engine.pool.pages_of(engine.columns["kv"][engine.live]).sum() - engine.count_shared().sum()
        )
        cached = len(self.allocator.cached)
        return {
            "committed": int(committed),
            "tentative": used - int(committed),
            "cached": cached,
            "free": engine.pool.pages - used - cached,
        }

    @property
    def has_work(self) -> bool:
        """Tell whether any request is not at its end."""
        return self.engine.has_work

    def switch(self, policy: Policy) -> None:
        """Put another policy in force from the next iteration on; errors as in `Engine.switch`."""
        if self.resident is not None:
            self.resident.refuse_policy(policy, self.engine.policy, self.runner)
        self.engine.switch(policy)
        if isinstance(self.runner, Runner):
            self.runner.operators.rate = policy.rate
        else:
            self.runner.state.weigh(policy.rate)

    def add(self, prompt: Sequence[int], options: Options | None = None) -> int:
        """Queue a request and give its number.

        The context length cuts `max_tokens`. Raises UserError for a prompt that is empty or leaves no room in the
        context, or a sampling parameter out of range, and PoolExhausted for one that the pool can never hold.
        """
        options = options or Options()
        if self.synthetic is not None and options.controls.grammar is not None:
            refuse_grammar()
        limit = context_limit(self.model.config, len(prompt), options.max_tokens)
        require_sampling(options.sampling)
        stop_ids = self.model.config.eos_token_ids if options.stop_ids is None else options.stop_ids
        scores = None
        if options.logprobs is not None:
            scores = Scores(options.logprobs, prompt=options.prompt_logprobs)
        request = Request(prompt, limit, options.sampling, options.seed, stop_ids, options.controls, scores)
        if self.resident is not None:
            self.resident.refuse(request, self.table)
        number = self.engine.submit(len(prompt), limit)
        self.runner.add(number, request)
        decoder = self.tokenizer.stream() if self.tokenizer else None
        self._streams[number] = TextStream(request, decoder, options.stop, include_stop=options.include_stop)
        return number

    def request(self, number: int) -> Request:
        """Give a request that was added and not forgotten."""
        return self._streams[number].request

    def iterate(self) -> dict[int, str]:
        """Run one iteration of the engine; give the text that became certain, by request.

        Raises PoolExhausted where nothing can move: the policy has let requests block each other.
        """
        report = self.engine.iterate()
        self.launches += report.launches
        if report.idle and self.engine.has_work:
            raise PoolExhausted(
                "all requests wait for KV pages that only they could return; use the policy holdback or reserve"
            )
        faulty = self._end_faulty(report)
        return self._read(report) | dict.fromkeys(faulty, "")

    def _end_faulty(self, report: Iteration) -> set[int]:
        """End the requests whose logits were no numbers; gives who they are."""
        if not self.runner.faulty:
            return set()
        faulty, self.runner.faulty = self.runner.faulty, set()
        for number in faulty:
            self._streams[number].fail(NOT_FINITE)
            if number not in report.finished:
                self.engine.abort(number)
        return faulty

    def _read(self, report: Iteration) -> dict[int, str]:
        """Decode new tokens, look for stop strings, and note who ended."""
        texts: dict[int, str] = {}
        for number in report.emitted:
            if self._awaited(number):
                stream = self._streams[number]
                texts[number] = stream.read()
                if stream.reason:
                    self.engine.halt(number, stream.seen)
                    stream.request.halt(stream.seen)
        for number in report.finished:
            if self._awaited(number):
                stream = self._streams[number]
                texts[number] = texts.get(number, "") + stream.close(self.model.config.eos_token_ids)
        return texts

    def _awaited(self, number: int) -> bool:
        """Tell whether a request's text goes on: a host that plans ahead hears of rounds behind its end too."""
        stream = self._streams.get(number)
        return stream is not None and not stream.reason

    def abort(self, number: int) -> None:
        """End a request that nobody waits for any more."""
        stream = self._streams[number]
        if not stream.reason:
            stream.reason = "abort"
            self.engine.abort(number)

    def done(self, number: int) -> bool:
        """Tell whether a request is at its end."""
        return bool(self._streams[number].reason)

    def stream(self, number: int) -> Iterator[str]:
        """Iterate until a request is at its end, yielding its text as it becomes certain."""
        while not self.done(number):
            text = self.iterate().get(number, "")
            if text:
                yield text

    def run(self) -> None:
        """Iterate until all requests are at their end."""
        while self.has_work:
            self.iterate()

    def result(self, number: int) -> Result:
        """Give what a request has emitted so far, and how."""
        stream = self._streams[number]
        request = stream.request
        return Result(
            text=stream.text,
            token_ids=request.output,
            finish_reason=stream.reason,
            rounds=request.rounds,
            acceptance_length=request.emitted / request.rounds if request.rounds else None,
            tokens_per_forward=request.emitted / request.forwards if request.forwards else None,
            prompt_tokens=request.prompt,
            forwards=request.forwards,
            cached_tokens=request.cached or 0,
            stop_reason=stream.stop_reason,
        )

    def fault(self, number: int) -> str:
        """Say what went wrong with a request whose tokens came from no law; nothing of any other."""
        return self._streams[number].fault

    def forget(self, number: int) -> None:
        """Drop a request that is at its end, so that a long-lived session does not grow."""
        if self.done(number):
            del self._streams[number]


def require_prefixes(table: Table) -> None:
    """Raise UserError for a spec whose KV may not be found again by later requests."""
    why = rules.refusal(table)
    if why:
        raise UserError(f"{table.name} keeps no pages for later requests: {why}; use --no-prefix-cache")


def _prefixes(table: Table, pages: PageHolders, requests: Mapping[int, Request], view: str) -> PrefixCache:
    require_prefixes(table)
    return PrefixCache(table, pages, requests, view)


def _identity(drafter: Drafter) -> tuple[object, ...]:
    """Say what the KV of a draft model depends on, beside its weights, which do not change in a session."""
    return type(drafter).__name__, drafter.config, drafter.dtype, drafter.capture


def require_mask_id(mask_id: int | None, config: ModelConfig) -> None:
    """Raise UserError for a mask token, given or the model's own, that the vocabulary does not have."""
    found = config.mask_token_id if mask_id is None else mask_id
    if found is not None and not 0 <= found < config.vocab:
        raise UserError(f"mask id {found} is out of range; the model has tokens 0 to {config.vocab - 1}")


def require_children(table: Table, config: ModelConfig) -> None:
    """Raise UserError where the nodes of a tree are to have more children than the model has tokens to draft."""
    most = config.vocab - 1  # the mask token is never one
    for plan in table.forwards.values():
        for operator in plan.operators:
            if operator.op == "grow" and operator.number("top") > most:
                raise UserError(
                    f"{table.name} grows trees by the best {operator.number('top')} tokens, and the model has {most} to"
                    " choose from; set a smaller value"
                )


def require_sampling(sampling: SamplingParams) -> None:
    """Raise UserError for a sampling parameter out of range."""
    try:
        SamplingRows.of([sampling])
    except ValueError as error:
        raise UserError(str(error).removeprefix("row 0: ")) from None


def context_limit(config: ModelConfig, prompt: int, max_tokens: int) -> int:
    """Cut the limit of new tokens at the context length; raises UserError where the prompt fills it."""
    if prompt >= config.context and max_tokens > 0:
        raise UserError(
            f"the prompt has {counted(prompt, 'token')} and the model's context {config.context}; give a shorter prompt"
        )
    return min(max_tokens, config.context - prompt)


def pool_for(
    table: Table, prompt: int, limit: int, page_size: int = 16, policy: Policy | None = None
) -> Pool:
    """Give the smallest pool that carries one request to its limit, under the tiers of a policy if it has any."""
    pages = longest_pages(table, Pool(0, page_size), max(prompt, 1), limit, policy or Policy())
    return Pool(max(1, pages), page_size)


def default_mask_id(config: ModelConfig, tokenizer: Tokenizer | None) -> int:
    """Choose the id that stands on mask rows.

    The mask token that the model's configuration or its tokenizer names; without one, the first special token that
    neither starts nor ends a text: text never holds it, so that keeping it out of the drafts costs no acceptance.
    Without any, id 0.
    """
    if config.mask_token_id is not None:
        return config.mask_token_id
    if tokenizer is None:
        return 0
    if tokenizer.mask_token_id is not None:
        return tokenizer.mask_token_id
    taken = {config.bos_token_id, *config.eos_token_ids}
    size = min(tokenizer.vocab, config.vocab)
    for token in chain(range(min(_FIRST_IDS, size)), range(max(size - _LAST_IDS, 0), size)):
        if token not in taken and tokenizer.token(token) and not tokenizer.decode([token]):
            return token
    return 0


def trace_header(
    table: Table, policy: Policy, pool: Pool, spec_text: str, synthetic: Synthetic | None = None
) -> dict[str, Any]:
    """Give the first record of an executor's trace."""
    given = {} if synthetic is None else {"synthetic": synthetic.describe()}
    return header(table, policy, pool, spec_text, "executor") | given
