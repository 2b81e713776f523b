"""Put a resident runner together: sizes from table, pool and models, memory asked for before it is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fsm_spec.engine import Engine
from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.device.control import refuse
from fsm_spec.executor.device.orders import Device
from fsm_spec.executor.device.overlap import OverlappedEngine
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.device.place import Place, find_place, require_bytes
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.device.state import DeviceState, Sizes
from fsm_spec.executor.device.weights import Weights, bytes_of, to_device
from fsm_spec.executor.drafting import DraftModel, captured_layers
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.drafter import Drafter
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.synthetic import Synthetic
from fsm_spec.executor.tensor_parallel import Leader, Residence, refuse_drafters
from fsm_spec.policy import Policy, Pool, most_headroom
from fsm_spec.table import Table
from fsm_spec.tiers import Tiers

# A GPU's grids have so many programs along their second axis: there stand requests times KV heads.
MOST_PROGRAMS = 65_535
# What is left of a device's memory is for graphs, activations and the state of requests.
_KV_SHARE = 0.8


@dataclass(frozen=True)
class Resident:
    """Say where a session runs resident; with `require_graphs` a phase without a graph is refused.

    `fuse` is that of `weights.py:Weights`; `lines` bounds the requests at once where they are fewer than the policy's.
    """

    place: Place
    require_graphs: bool = False
    fuse: bool | None = None
    lines: int | None = None
    attention: str = "auto"
    synthetic: Synthetic | None = None

    def runner(
        self,
        tiers: Tiers,
        model: Transformer,
        drafters: Mapping[str, Drafter],
        pool: Pool,
        policy: Policy,
        mask_id: int,
    ) -> DeviceRunner:
        """Put a runner together, with the other processes of a model in parts; UserError where memory is missing."""
        tell = None
        if isinstance(model, Leader):
            refuse_drafters(tiers.largest)
            if self.place.graphs and self.place.device.type == "cpu":
                raise UserError(
                    "--require-graphs: a tape on a CPU holds no sum over processes; leave it out, or leave out "
                    "--tensor-parallel"
                )
            table = tiers.largest
            made = Residence(self, table.spec, table.params, pool, policy, mask_id)
            tell = model.group.live(made)
        return DeviceRunner(self.device(tiers, model, drafters, pool, policy, mask_id), tell=tell)

    def device(
        self,
        tiers: Tiers,
        model: Transformer,
        drafters: Mapping[str, Drafter],
        pool: Pool,
        policy: Policy,
        mask_id: int,
    ) -> Device:
        """Move models to the device and make the state of requests there; UserError where memory is missing."""
        place = self.place
        drafting = {name: DraftModel(each, None) for name, each in drafters.items()}
        capture = captured_layers(tiers.largest, drafting)
        lines = min(policy.max_running, self.lines or policy.max_running)
        _refuse_heads(lines, [model, *drafters.values()])
        sizes = replace(_sizes(tiers, policy, pool, model, drafters, len(capture)), lines=lines)
        if place.device.type != "cpu":
            held = bytes_of((model, dict(drafters)))
            require_bytes(place, held, "the model", "use a smaller model, or --dtype bfloat16")
        moved, moved_drafters = to_device((model, dict(drafters)), place.device)
        models: list[Transformer | Drafter] = [model, *drafters.values()]
        needed = sum(_cache_bytes(each, pool) for each in models)
        require_bytes(place, needed, f"the KV cache of {pool.pages} pages", "lower --pages")

        def cache_of(each: Transformer | Drafter) -> PagedCache:
            return PagedCache(each.config, pool.pages, pool.page_size, each.dtype, place.device)

        laws = None if self.synthetic is None else self.synthetic.laws(place.constant)
        state = DeviceState(tiers.largest, tiers.carry, sizes, place.device, laws)
        if policy.rate is not None:
            state.weigh(policy.rate)
        machine = Machine(
            place=place,
            weights=Weights(moved, place, fuse=self.fuse),
            cache=cache_of(moved),
            drafters={name: DraftModel(each, cache_of(each)) for name, each in moved_drafters.items()},
            capture=capture,
            state=state,
            mask_id=mask_id,
            vocabulary=model.config.vocab,
            attention=self.attention,
        )
        return Device(tiers, machine, policy, required=self.require_graphs)

    def spare_bytes(self, model: Transformer) -> int | None:
        """Tell how much memory of the device KV may take beside a model; None where that is not known."""
        free = self.place.spare_bytes()
        return None if free is None else max(0, int((free - bytes_of(model)) * _KV_SHARE))

    @staticmethod
    def engine(policy: Policy) -> type[Engine]:
        """Give the engine loop of a policy: with a lag, the host plans a round while the one before runs."""
        return OverlappedEngine if policy.lag else Engine

    @staticmethod
    def refuse_policy(policy: Policy, present: Policy, runner: Runner | DeviceRunner) -> None:
        """Raise UserError for a policy that a running session cannot change to."""
        if isinstance(runner, DeviceRunner) and policy.max_running > runner.state.sizes.lines:
            raise UserError(
                f"the policy lets {policy.max_running} requests run, and this run has lines for "
                f"{runner.state.sizes.lines}; start with that policy, then switch to it"
            )
        if policy.lag != present.lag:
            raise UserError("a host that plans ahead is chosen at the start; start with that policy's lag")

    @staticmethod
    def refuse(request: Request, table: Table) -> None:
        """Raise UserError for a request that the device cannot run alone."""
        refuse(request, table)


def resident_of(
    device: str, *, resident: bool, require_graphs: bool, attention: str = "auto", lines: int | None = None
) -> Resident | None:
    """Read `--device`, `--resident`, `--require-graphs` and `--attention`; None for the CPU's own runner.

    `lines` bounds the requests at once. Raises UserError where the device cannot be used, and for graphs that nothing
    would capture.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not resident:
        if require_graphs:
            raise UserError(
                "--require-graphs: the CPU's own runner has no graphs; add --resident, which records them on tapes, "
                "or run with --device cuda"
            )
        return None
    return Resident(
        find_place(device, graphs=require_graphs), require_graphs, lines=lines, attention=attention
    )


def _refuse_heads(lines: int, models: Sequence[Transformer | Drafter]) -> None:
    """Raise UserError where a launch of attention would have more programs along an axis than a GPU takes."""
    most = MOST_PROGRAMS // max(each.config.kv_heads for each in models)
    if lines > most:
        raise UserError(
            f"the policy lets {lines} requests run at once, and this model's attention takes {most} in a launch; "
            "lower max_running"
        )


def _sizes(
    tiers: Tiers,
    policy: Policy,
    pool: Pool,
    model: Transformer,
    drafters: Mapping[str, Drafter],
    captured: int,
) -> Sizes:
    """Size the state of requests: as many lines as may run, texts as long as context and pool allow."""
    table, config = tiers.largest, model.config
    text = min(config.context, pool.pages * pool.page_size + max(table.block or 1, 1))
    longest = text + most_headroom(table, policy)
    return Sizes(
        lines=policy.max_running,
        pages=pool.pages,
        page_size=pool.page_size,
        text=text,
        table=max(1, min(pool.pages, int(pool.pages_of(longest)))),
        vocabulary=config.vocab,
        widths=_widths(table, config, drafters, captured),
        wide=model.wide,
    )


def _cache_bytes(model: Transformer | Drafter, pool: Pool) -> int:
    config, size = model.config, model.dtype.itemsize
    return config.layers * pool.pages * pool.page_size * 2 * config.kv_heads * config.head_dim * size


def _widths(
    table: Table, target: ModelConfig, drafters: Mapping[str, Drafter], captured: int
) -> dict[str, int]:
    """Give the width of each carry of hidden states: of the target's captured layers, or of a draft model's own.

    Which of them a carry holds says what its rows set it to.
    """
    own = {
        output: drafters[plan.model].config.hidden
        for plan in table.forwards.values()
        if plan.model is not None
        for operator in plan.operators
        for output in operator.out
    }
    widths = {}
    for carry in table.carry:
        if carry.type != "feature":
            continue
        names = {
            p.name for row in table.rows for name, pieces in row.carries if name == carry.name for p in pieces
        }
        drafted = [own[name] for name in names if name in own]
        widths[carry.name] = drafted[0] if drafted else captured * target.hidden
    return widths
