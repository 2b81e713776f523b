"""Requests that live on a GPU: rounds as CUDA graphs against the same rounds without, and against the CPU."""

from __future__ import annotations

import random

import pytest
import torch
from shipped_specs import sizes

from fsm_spec.compile import compile_table
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.device.place import CpuPlace, CudaPlace, Place
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, Prefill

TOKENS = 24
SPECS = ("ar", "isd_gated", "linear_spec", "ngram", "uno_tree", "sdar", "draft_lm", "eagle3")


@pytest.fixture(autouse=True)
def _waits_are_allowed(_poisoned_memory: None) -> None:
    """Let a session wait for results, and copy its model: what may not wait is inside a round."""
    torch.cuda.set_sync_debug_mode("default")


def tokens_of(spec: str, place: Place, *, lag: int = 0, graphs: bool = False) -> list[list[int]]:
    """Run three requests, one of which samples, in float32; pages free afterwards are all pages."""
    model = tiny_model(vocab=96, hidden=64, heads=4, kv_heads=2, dtype=torch.float32)
    model.adapter = random_adapter(model.config, torch.float32, seed=1)
    table = compile_table(load(spec).spec, sizes(spec))
    session = Session(
        table,
        model,
        pool=Pool(60, 16),
        # Few tokens an iteration: chunks of 1 to 6 pieces, alone and with decode rows, each a graph.
        policy=Policy(max_running=4, lag=lag, prefill=Prefill(tokens=64)),
        drafters=random_drafters(table, model),
        resident=Resident(place, graphs, fuse=False),
    )
    assert isinstance(session.runner, DeviceRunner)
    if graphs:
        session.runner.capture()
    source = random.Random(0)
    numbers = [
        session.add(
            [source.randrange(1, 94) for _ in range(5 + 20 * index)],
            Options(TOKENS, SamplingParams(0.9, 20) if index == 1 else SamplingParams(), seed=index),
        )
        for index in range(3)
    ]
    session.run()
    assert 60 == session.runner.free_pages
    assert not graphs or 0 == session.runner.graphs.eager < session.runner.graphs.replayed
    return [session.result(number).token_ids for number in numbers]


@pytest.mark.parametrize("spec", SPECS)
def test_graphs_give_what_the_same_kernels_give_without(spec: str, device: torch.device) -> None:
    """Captured at the start, replayed with other lines, texts and pages; then with a host that plans ahead."""
    plain = CudaPlace(device)
    plain.graphs = False
    expected = tokens_of(spec, plain)
    assert expected == tokens_of(spec, CudaPlace(device), graphs=True)
    assert expected == tokens_of(spec, CudaPlace(device), graphs=True, lag=1)


@pytest.mark.parametrize("spec", SPECS)
def test_greedy_tokens_are_those_of_the_cpu(spec: str, device: torch.device) -> None:
    """In float32 the most probable token of a random model is far from the next, whatever the order of sums."""
    expected, found = tokens_of(spec, CpuPlace()), tokens_of(spec, CudaPlace(device), graphs=True)
    assert expected[0] == found[0]
    assert expected[2] == found[2]
