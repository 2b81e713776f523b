"""Loading of weights on behalf of a command, with progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fsm_spec.executor.quantization_option import Quantization

if TYPE_CHECKING:
    from fsm_spec.executor.models.load import LoadedModel, ModelFiles
    from fsm_spec.executor.models.store import Progress


def load_weights(
    model: str,
    dtype: str,
    *,
    adapter: Path | None,
    gated: bool,
    tensor_parallel: int,
    threads: int,
    quantization: str,
    files: ModelFiles | None = None,
) -> LoadedModel:
    """Load model and adapter into this process, or cut over several; set torch's threads of each."""
    import torch

    number = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    if tensor_parallel > 1:
        from fsm_spec.executor.tensor_parallel import load_parallel

        with progress_bar() as progress:
            return load_parallel(
                model,
                number,
                tensor_parallel,
                adapter=adapter,
                gated=gated,
                threads=threads,
                progress=progress,
            )
    from fsm_spec.executor.models.load import load_model

    torch.set_num_threads(threads)
    int8 = quantization == Quantization.int8
    with progress_bar() as progress:
        return load_model(model, number, progress, adapter=adapter, gated=gated, int8=int8, files=files)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show progress on standard error, from the first report on; on no terminal a line for each step of work."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            if console.is_terminal:
                bar.start()
            else:
                print(f"{what} ...", file=sys.stderr, flush=True)
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield report
    finally:
        if console.is_terminal and tasks:
            bar.stop()
