"""Tensor parallelism: one model over several processes of a machine.

Process 0 runs engine, sampling and operators, and tells the others which rows to run; they know no request and no
spec. In lockstep, every process would have to see each arrival, abort and stop string at the same iteration; rows are
all that a forward needs. Where requests live on devices, each process holds them all, and is told the orders that
process 0 carries out itself (`device/orders.py`): what follows a sum is computed everywhere, and comes out the same.
What they are told goes through pipes, whose end says at once that a process is gone, and sums over the processes
through torch.distributed (gloo for tensors on the CPU, NCCL for those on GPUs). Captured hidden states and logits are
process 0's: streams are the same everywhere behind each sum.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import bundled_adapter, load_adapter, refuse_adapter_alone
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.config import read_config, read_names
from fsm_spec.executor.models.load import LoadedModel, SafetensorsFolder, folder_of
from fsm_spec.executor.models.rows import ForwardRows, RowBatch
from fsm_spec.executor.models.split import Split, SplitWeights
from fsm_spec.executor.models.store import Progress, silent
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.tiers import Tiers, tiers_of

if TYPE_CHECKING:
    from fsm_spec.executor.device.orders import Device, Order
    from fsm_spec.executor.device.resident import Resident
    from fsm_spec.language.spec import Spec

# Seconds that a process gets to end by itself.
_PATIENCE = 5.0
# Seconds between two looks at a process that is starting.
_STEP = 0.1


@dataclass(frozen=True)
class Part:
    """Say which part of which model a process holds."""

    folder: Path
    adapter: Path | None
    dtype: torch.dtype
    threads: int
    split: Split

    def load(self, kind: type[Transformer] = Transformer) -> Transformer:
        """Load the part; raises UserError where a file is missing or broken, or the model cannot be cut so."""
        whole = read_config(self.folder)
        config = self.split.config(whole)
        with SafetensorsFolder(self.folder) as weights:
            part = SplitWeights(weights, self.split, read_names(self.folder))
            model = kind(config, part, self.dtype)
        if self.adapter is not None:
            model.adapter = self.split.adapter(load_adapter(self.adapter, whole, self.dtype), whole)
        model.over_parts = add_over_parts
        return model

    def join(self, store: str) -> None:
        """Join the others; returns when all have."""
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(
            backend, init_method=f"file://{store}", rank=self.split.rank, world_size=self.split.size
        )


def add_over_parts(part: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all processes, in place."""
    distributed.all_reduce(part)
    return part


# The other processes --------------------------------------------------------------------------------------------


def follow(part: Part, store: str, pipe: Connection) -> None:
    """Load a part, and run what process 0 tells until it says `end` or is gone; the whole life of a process."""
    # Ctrl-C on a terminal reaches all of its processes; process 0 decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(part.threads)
    code = 0
    try:
        model = part.load()
        pipe.send("ready")
        part.join(store)
        _Follower(model, pipe).run()
        distributed.destroy_process_group()
    except (EOFError, OSError):
        pass  # process 0 is gone, and says why where somebody reads it
    except UserError as error:
        pipe.send(str(error))
        code = 1
    except Exception:  # noqa: BLE001 -- a fault of ours: say all, and end
        parent = mp.parent_process()
        if parent is not None and parent.is_alive():
            traceback.print_exc()
        code = 1
    sys.stderr.flush()
    # Threads of torch.distributed may abort an interpreter that ends in order.
    os._exit(code)


class _Follower:
    """Run rows on this process's part of the model, with its part of each cache."""

    def __init__(self, model: Transformer, pipe: Connection) -> None:
        self.model = model
        self.pipe = pipe
        self.caches: dict[int, PagedCache] = {}
        self.devices: dict[int, Device] = {}

    def run(self) -> None:
        """Follow until told to end; raises EOFError where process 0 is gone."""
        with torch.inference_mode():
            while (told := pickle.loads(self.pipe.recv_bytes()))[0] != "end":  # noqa: S301 -- our own pipe
                what, number, *given = told
                if what == "open":
                    pages, page_size = given
                    self.caches[number] = PagedCache(self.model.config, pages, page_size, self.model.dtype)
                elif what == "move":
                    self.caches[number].move(*map(torch.from_numpy, given))
                elif what == "live":
                    self.devices[number] = self._device(given[0])
                elif what == "order":
                    self.devices[number].run(given[0])
                elif what == "capture":
                    self.devices[number].capture()
                else:
                    rows = _unpacked(given[0])
                    self.model.run(self.model.embed(rows.token_ids), rows, self.caches[number])

    def _device(self, made: Residence) -> Device:
        """Make the state of requests, and this process's part of their KV."""
        resident = made.resident
        if resident.place.device.type == "cuda":
            from fsm_spec.executor.device.place import find_place  # noqa: PLC0415 -- only where requests live there

            resident = replace(resident, place=find_place(f"cuda:{distributed.get_rank()}"))
        return resident.device(made.tiers, self.model, {}, made.pool, made.policy, made.mask_id)


@dataclass(frozen=True)
class Residence:
    """Say where and how requests live, for processes that hold parts of the model."""

    resident: Resident
    spec: Spec
    params: Mapping[str, int]
    pool: Pool
    policy: Policy
    mask_id: int

    @property
    def tiers(self) -> Tiers:
        """Compile the tables once more: compiled functions do not travel."""
        return tiers_of(compile_table(self.spec, self.params), self.policy)


# Process 0 ------------------------------------------------------------------------------------------------------


class Leader(Transformer):
    """Be process 0's part of a model: every forward runs in all processes."""

    group: Group

    @torch.inference_mode()
    def forward(self, rows: ForwardRows, cache: PagedCache) -> torch.Tensor:
        """Run T rows as `Transformer.forward` does; raises UserError where another process is gone."""
        with self._together(rows, cache):
            return super().forward(rows, cache)

    @torch.inference_mode()
    def forward_captured(
        self, rows: ForwardRows, cache: PagedCache, capture: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run T rows as `Transformer.forward_captured` does; raises UserError where another process is gone."""
        with self._together(rows, cache):
            return super().forward_captured(rows, cache, capture)

    @contextmanager
    def _together(self, rows: ForwardRows, cache: PagedCache) -> Iterator[None]:
        with self.group.watched():
            if not isinstance(rows, RowBatch):
                # An order is told as a whole (`Group.live`).
                yield
                return
            number = self.group.number_of(cache)
            self.group.tell("run", number, _packed(rows))
            yield


class Group:
    """Hold the other processes: start them, tell them what to run, and end them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.size = len(parts) + 1
        self._folder = tempfile.TemporaryDirectory(prefix="fsm-spec-")
        self.store = str(Path(self._folder.name) / "store")
        self._caches: dict[int, PagedCache] = {}
        self._lives = 0
        self._closed = threading.Event()
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        for part in parts:
            ours, theirs = context.Pipe()
            process = context.Process(target=follow, args=(part, self.store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        atexit.register(self.close)

    def wait_ready(self) -> None:
        """Wait until all have loaded their parts; raises UserError with what one of them says."""
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            while not pipe.poll(_STEP):
                if not process.is_alive():
                    raise UserError(self._sentence())
            try:
                said = pipe.recv()
            except EOFError:
                raise UserError(self._sentence()) from None
            if said != "ready":
                raise UserError(str(said))
        threading.Thread(target=self._watch, name="tensor-parallel", daemon=True).start()

    def tell(self, what: str, number: int, *given: object) -> None:
        """Tell all processes what to run next."""
        message = pickle.dumps((what, number, *given), pickle.HIGHEST_PROTOCOL)
        for pipe in self._pipes:
            pipe.send_bytes(message)

    def number_of(self, cache: PagedCache) -> int:
        """Give the number of a cache; the other processes open their parts of a new one."""
        number = id(cache)
        if number not in self._caches:
            self._caches[number] = cache
            self.tell("open", number, cache.pages, cache.page_size)
            cache.echo = lambda source, target: self._move(number, source, target)
        return number

    def live(self, made: Residence) -> Callable[[Order | None], None]:
        """Let requests live in all processes; the call given tells them an order, or to capture graphs."""
        number = self._lives = self._lives + 1
        with self.watched():
            self.tell("live", number, made)

        def tell(order: Order | None) -> None:
            with self.watched():
                self.tell("capture" if order is None else "order", number, order)

        return tell

    def _move(self, number: int, source: torch.Tensor, target: torch.Tensor) -> None:
        with self.watched():
            self.tell("move", number, source.numpy(), target.numpy())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn what happens where a process is gone into a sentence."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until:
                if not all(process.is_alive() for process in self.processes):
                    sentence = self._sentence()
                    self.close()
                    raise UserError(sentence) from error
                time.sleep(_STEP)
            raise

    def _sentence(self) -> str:
        gone = next(
            (n for n, process in enumerate(self.processes, start=1) if process.exitcode is not None), None
        )
        code = "" if gone is None else f" (exit code {self.processes[gone - 1].exitcode})"
        return (
            f"process {gone or 1} of the {self.size} that run the model has ended{code}; start again, and look for its "
            "last words above, or in the system's log where memory ran out"
        )

    def _watch(self) -> None:
        """End the command where a process is gone and nobody notices: it is idle, or waits for a sum."""
        wait([process.sentinel for process in self.processes])
        if self._closed.wait(_PATIENCE):
            return
        sys.stderr.write(f"{self._sentence()}\n")
        sys.stderr.flush()
        self._end()
        os._exit(1)

    def close(self) -> None:
        """End all other processes; once."""
        if self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self.close)
        for pipe in self._pipes:
            try:
                pipe.send_bytes(pickle.dumps(("end",)))
            except OSError:  # that one is gone already
                continue
        self._end()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _end(self) -> None:
        until = time.monotonic() + _PATIENCE
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def load_parallel(
    path_or_name: str | Path,
    dtype: torch.dtype,
    size: int,
    *,
    adapter: Path | None = None,
    gated: bool = False,
    threads: int = 1,
    progress: Progress = silent,
) -> LoadedModel:
    """Load a model and its adapter over `size` processes, this one among them; they end with this process.

    Where no adapter is given and rows are `gated`, one that lies with the model is taken. `threads` are this
    machine's for all of them together. Raises UserError for a model that cannot be cut so.
    """
    folder = folder_of(path_or_name, progress)
    refuse_adapter_alone(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if adapter is None and gated:
        adapter = bundled_adapter(folder)
    each = max(1, threads // size)
    parts = [Part(folder, adapter, dtype, each, Split(rank, size)) for rank in range(size)]
    # Before any process is started.
    parts[0].split.config(read_config(folder))
    torch.set_num_threads(each)
    group = Group(parts[1:])
    try:
        model = parts[0].load(Leader)
        group.wait_ready()
        parts[0].join(group.store)
    except BaseException:
        group.close()
        raise
    assert isinstance(model, Leader)
    model.group = group
    return LoadedModel(Path(path_or_name).name, folder, model.config, model, tokenizer, adapter)


def refuse_drafters(table: Table) -> None:
    """Raise UserError for a spec with draft models: they read the target's layers whole, in one process."""
    if table.models:
        raise UserError(
            f"{table.name} drafts with a model of its own ({', '.join(table.models)}), which runs in one process; "
            "leave out --tensor-parallel, or take a spec that drafts with the target"
        )


# Rows on their way ----------------------------------------------------------------------------------------------


def _packed(rows: RowBatch) -> dict[str, Any]:
    """Turn tensors into arrays: pickled as tensors they would each travel as a file of their own."""
    return {each.name: _array(getattr(rows, each.name)) for each in fields(rows)}


def _array(value: Any) -> Any:  # noqa: ANN401 -- whatever a field holds
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, list):
        return [_array(each) for each in value]
    return value


def _unpacked(packed: dict[str, Any]) -> RowBatch:
    return RowBatch(**{name: _tensor(value) for name, value in packed.items()})


def _tensor(value: Any) -> Any:  # noqa: ANN401 -- whatever a field holds
    if hasattr(value, "dtype"):
        return torch.from_numpy(value)
    if isinstance(value, list):
        return [_tensor(each) for each in value]
    return value
