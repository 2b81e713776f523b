"""What `fsm-spec generate` does."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.attention_option import require_attention
from fsm_spec.executor.draft_option import require_drafts
from fsm_spec.executor.loading import load_weights, progress_bar
from fsm_spec.executor.quantization_option import require_quantization
from fsm_spec.executor.threads import default_threads
from fsm_spec.executor.trained import trained_settings
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.policy_file import load_policy
from fsm_spec.table import refuse_abstract
from fsm_spec.tiers import refuse_given, tiers_of
from fsm_spec.trace import TraceWriter
from fsm_spec.writing import writing

if TYPE_CHECKING:
    from fsm_spec.executor.generate import Options, Session
    from fsm_spec.executor.models.drafter import Drafter
    from fsm_spec.executor.models.load import LoadedModel, ModelFiles
    from fsm_spec.executor.models.store import Progress
    from fsm_spec.executor.tokenizer import Tokenizer
    from fsm_spec.table import Table


@dataclass(frozen=True)
class Run:
    """Hold the options of one `generate`."""

    spec: str
    prompts: tuple[str, ...]
    max_tokens: int | None
    model: str
    adapter: Path | None
    drafters: dict[str, str]
    mask_id: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    dtype: str
    device: str
    resident: bool
    require_graphs: bool
    stop: tuple[str, ...]
    ignore_eos: bool
    raw: bool
    settings: dict[str, int]
    policy: str
    pages: int | None
    page_size: int
    attention: str
    threads: int | None
    steps: bool
    trace: Path | None
    as_json: bool
    tensor_parallel: int = 1
    quantization: str = "none"
    synthetic_acceptance: str | None = None
    synthetic_unmasking: str | None = None


def execute(run: Run) -> None:
    """Generate and print; everything that can be refused without the model is refused before it loads."""
    started = time.perf_counter()
    loaded = load(run.spec)
    table = compile_table(loaded.spec, run.settings, line_of=loaded.line_of)
    refuse_abstract(table)
    policy = load_policy(run.policy)
    refuse_given(policy, run.settings)
    require_drafts(table, run.drafters)
    _check_text(run)
    settings = trained_settings(loaded.spec, run.settings, policy, _block_size(run.model))
    if settings != run.settings:
        table = compile_table(loaded.spec, settings, line_of=loaded.line_of)
    table = tiers_of(table, policy).largest
    if run.tensor_parallel > 1:
        from fsm_spec.executor.tensor_parallel import refuse_drafters

        refuse_drafters(table)
    with trace_file(run.trace) as trace_out:
        from fsm_spec.executor.answers import Watch, report
        from fsm_spec.executor.device.resident import resident_of
        from fsm_spec.executor.generate import Session, trace_header
        from fsm_spec.executor.synthetic import synthetic_of

        synthetic = synthetic_of(run.synthetic_acceptance, run.synthetic_unmasking, table)
        if synthetic is not None:
            print(f"warning: {synthetic.warning()}", file=sys.stderr)
        resident = resident_of(
            run.device,
            resident=run.resident,
            require_graphs=run.require_graphs,
            attention=run.attention,
            lines=len(run.prompts),
        )
        require_attention(
            run.attention, "cpu" if resident is None else resident.place.device.type, run.page_size
        )
        require_quantization(run.quantization, resident=resident is not None, processes=run.tensor_parallel)
        files, prompts, pool = _prepare(run, table, policy)
        threads = default_threads() if run.threads is None else run.threads
        model = load_weights(
            run.model,
            run.dtype,
            adapter=run.adapter,
            gated=table.gated,
            tensor_parallel=run.tensor_parallel,
            threads=threads,
            quantization=run.quantization,
            files=files,
        )
        records: list[dict[str, Any]] = []
        head = trace_header(table, policy, pool, loaded.text, synthetic)
        session = Session(
            table,
            model.transformer,
            model.tokenizer,
            pool=pool,
            policy=policy,
            mask_id=run.mask_id,
            drafters=_drafters(run, table, model),
            trace=TraceWriter(records, head) if run.steps or trace_out else None,
            resident=resident,
            synthetic=synthetic,
        )
        with progress_bar() as progress:
            capture_graphs(session, progress)
        numbers = [session.add(prompt, _options(run, index)) for index, prompt in enumerate(prompts)]
        watch = Watch(run, session, numbers, records, trace_out)
        ready = time.perf_counter()
        first = watch.follow()
        ended = time.perf_counter()
    measured = {
        "seconds": ended - ready,
        "load_s": ready - started,
        "first_token_s": first - ready if first else None,
        "threads": threads,
    }
    report(run, table, model, session, numbers, measured)


def _prepare(run: Run, table: Table, policy: Policy) -> tuple[ModelFiles, list[list[int]], Pool]:
    """Encode the prompts and size the pool; all that files other than weights can refuse is refused here."""
    from fsm_spec.engine import refuse
    from fsm_spec.executor.adapter import adapter_settings
    from fsm_spec.executor.generate import context_limit, pool_for, require_mask_id, require_sampling
    from fsm_spec.executor.models.load import open_model

    if run.adapter is not None:
        adapter_settings(run.adapter)
    options = _options(run, 0)
    require_sampling(options.sampling)
    with progress_bar() as progress:
        files = open_model(run.model, progress)
    require_mask_id(run.mask_id, files.config)
    if run.max_tokens is not None and run.max_tokens > files.config.context:
        raise UserError(
            f"--max-tokens {run.max_tokens} is more than the model's context of {files.config.context}; give at most"
            f" {files.config.context}"
        )
    prompts = [_encode(files.tokenizer, run, text) for text in run.prompts]
    limits = [context_limit(files.config, len(prompt), options.max_tokens) for prompt in prompts]
    lengths = list(zip(map(len, prompts), limits, strict=True))
    pages = run.pages or sum(
        pool_for(table, prompt, limit, run.page_size, policy).pages for prompt, limit in lengths
    )
    pool = Pool(pages, run.page_size)
    for prompt, limit in lengths:
        refuse(table, policy, pool, prompt, limit)
    return files, prompts, pool


def capture_graphs(session: Session, progress: Progress) -> None:
    """Capture all graphs before the first request comes, where requests live on a device that has them.

    What runs without one is said on standard error.
    """
    from fsm_spec.executor.device.runner import DeviceRunner

    if isinstance(session.runner, DeviceRunner) and session.runner.machine.place.graphs:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            session.runner.capture(progress)
        for each in said:
            print(f"warning: {each.message}", file=sys.stderr)


def _check_text(run: Run) -> None:
    if not run.prompts:
        raise UserError("there is no prompt; give --prompt TEXT, or a file of them after --prompts")
    if "" in run.prompts:
        raise UserError("the prompt is empty; give at least one character after --prompt")
    for text in (*run.prompts, *run.stop):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                "the prompt or a stop text is no valid UTF-8; check the terminal's encoding"
            ) from None
    if "" in run.stop:
        raise UserError("a stop text is empty; give at least one character after --stop")
    if not -(2**63) <= run.seed < 2**63:
        raise UserError(f"seed {run.seed} does not fit in 64 bits; choose a smaller one")


def _block_size(model: str) -> int | None:
    """Read the block that a model was trained on; GGUF files name none."""
    from fsm_spec.executor.models.config import read_config
    from fsm_spec.executor.models.store import resolve

    folder = resolve(model)
    return read_config(folder).block_size if (folder / "config.json").is_file() else None


def _drafters(run: Run, table: Table, model: LoadedModel) -> dict[str, Drafter]:
    """Load the draft models of the spec."""
    from fsm_spec.executor.models.load_drafters import load_drafters

    return load_drafters(table, run.drafters, model)


def _encode(tokenizer: Tokenizer, run: Run, text: str) -> list[int]:
    if run.raw or not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def _options(run: Run, index: int) -> Options:
    """Give the options of one prompt; seeds count up, so that equal prompts draw apart."""
    from fsm_spec.executor.generate import Options
    from fsm_spec.kernels.law import SamplingParams

    sampling = SamplingParams(run.temperature, run.top_k, run.top_p, run.min_p)
    seed = (run.seed + index + 2**63) % 2**64 - 2**63
    stop_ids = () if run.ignore_eos else None
    options = Options(sampling=sampling, seed=seed, stop_ids=stop_ids, stop=run.stop)
    return options if run.max_tokens is None else replace(options, max_tokens=run.max_tokens)


@contextmanager
def trace_file(path: Path | None) -> Iterator[IO[str] | None]:
    """Open the trace file before any work; raises UserError if it cannot be written."""
    if path is None:
        yield None
        return
    with writing(path, "--trace"):
        out = path.open("w", encoding="utf-8")
    with out:
        yield out
