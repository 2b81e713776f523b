"""A whole round on fake CUDA tensors: nothing waits for the host, and every tensor is made on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_device import device_only
from numpy.typing import NDArray
from shipped_specs import SPECS, operators, sizes
from torch import Tensor

from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.control import reads_in_order
from fsm_spec.executor.device import resident
from fsm_spec.executor.device.control import Wishes
from fsm_spec.executor.device.mailbox import Opening
from fsm_spec.executor.device.mixed import Mixed
from fsm_spec.executor.device.peek import Peek
from fsm_spec.executor.device.pieces import PIECE_NUMBERS
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.weights import moved
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.synthetic import Synthetic, synthetic_of
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of

LINES = 4


class FakePlace(CpuPlace):
    """Be a GPU without values: what the host would copy there is made there."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda", 0)

    def constant(self, values: NDArray[Any]) -> Tensor:
        """Make a tensor of that shape."""
        return torch.empty(values.shape, dtype=getattr(torch, str(values.dtype)), device=self.device)


def parts(name: str) -> set[str]:
    """Name what a spec is made of, as far as another path through the round follows: rules of one operator do not."""
    spec = SPECS[name]
    found = {key.partition(":")[0] for key in operators(name)} | {
        str(each.kind) for each in spec.models.values()
    }
    found |= {forward.attention for forward in spec.forwards.values()} | {type(spec.contract).__name__}
    return found | {key for key in operators(name) if key.startswith(("grow", "sample"))}


def covering() -> list[str]:
    """Choose specs that have every part together, each the one that adds most."""
    offers = {name: parts(name) for name in SPECS}
    wanted, chosen = set().union(*offers.values()), []
    while wanted:
        best = max(offers, key=lambda name: len(offers[name] & wanted))
        chosen.append(best)
        wanted -= offers[best]
    return chosen


def any_synthetic(table: Table) -> Synthetic | None:
    """Let every count be drawn: the rules of operators run beside it."""
    drafts, masks = ("geometric:0.5" if most_drafts(table, op) else None for op in ("accept", "unmask"))
    return synthetic_of(drafts, masks, table)


@pytest.mark.parametrize("spec", covering())
def test_a_round_stays_on_the_device(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mail, every phase alone and those that run together, prefill with and without its end, admission."""

    def fake(value: Any, device: torch.device) -> Any:  # noqa: ANN401 -- any model
        return moved(value, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))

    monkeypatch.setattr(resident, "to_device", fake)
    model = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1, layers=2)
    model.adapter = random_adapter(model.config, torch.float64, seed=1)
    table = compile_table(load(spec).spec, sizes(spec, 3))
    drafters = random_drafters(table, model)
    policy = Policy(max_running=LINES)
    # No default device: a tensor made without one is made on the CPU, and refused.
    with torch.inference_mode(), device_only(), torch.device("cpu"):
        runner = Resident(FakePlace(), synthetic=any_synthetic(table)).runner(
            tiers_of(table, policy), model, drafters, Pool(20, 8), policy, mask_id=47
        )
        lines = torch.empty(LINES, dtype=torch.int64, device="cuda")
        for whole in (False, True):
            opening = Opening(runner.state, whole=whole)
            opening(opening.blank(LINES))
        for phase in runner.device.phases():
            packed = phase(lines)
            assert [LINES] * len(packed) == [len(each) for each in packed]
        asked = Wishes(adjusts=True, scores=reads_in_order(table), follows=True)
        runner.state.hold_masks(runner.device.mask_rows)
        runner.state.allow(
            lines, torch.empty(LINES, runner.device.mask_rows, 1, dtype=torch.int64, device="cuda")
        )
        for phase in runner.device.phases(asked):
            told = Peek(phase)(lines)
            assert {LINES} == {len(each) for each in phase(lines)} == {len(each) for each in told}
        for work in (runner.prefill.chunks(4), runner.prefill.chunks(6, asked, prompt=asked.scores)):
            assert {LINES} == {len(each) for each in work(work.blank(LINES))}
        carrying = [phase for phase in runner.device.phases(asked) if runner.device.carries(phase)]
        assert carrying
        for phase in carrying:
            mixed = Mixed(phase, runner.prefill.chunks(runner.prefill.piece_rows, asked), 2)
            assert {LINES, 2} == {len(each) for each in mixed(mixed.blank(LINES + 2 * PIECE_NUMBERS))}
        runner.prefill.begin(lines, lines)
        runner.state.give_back(lines)
        assert "cuda" == runner.state.taken(3).device.type
