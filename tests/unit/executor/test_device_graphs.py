"""Graphs of phases, on the double that a CPU has of them: what is captured is what runs, whatever changes later."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from shipped_specs import sizes

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.device.graphs import buckets
from fsm_spec.executor.device.place import CpuPlace, Graph
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.device.state import TREE_PARTS
from fsm_spec.executor.device.tape import CaptureRefused, Tape
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, Prefill

TOKENS = 8
SAMPLED = SamplingParams(0.9, 12, 0.95)


@pytest.fixture
def model() -> Transformer:
    """Return a small random model in float64, without an adapter."""
    return tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1)


def session_of(
    spec: str, model: Transformer, resident: Resident, *, lines: int = 3, prompts: int = 3
) -> tuple[Session, DeviceRunner]:
    """Return a session with requests, one of which samples."""
    table = compile_table(load(spec).spec, sizes(spec, 4))
    session = Session(
        table,
        model,
        pool=Pool(40, 4),
        policy=Policy(max_running=lines),
        drafters=random_drafters(table, model),
        resident=resident,
    )
    add(session, prompts)
    assert isinstance(session.runner, DeviceRunner)
    return session, session.runner


def add(session: Session, prompts: int) -> list[int]:
    """Queue requests of several lengths."""
    source = random.Random(2)
    return [
        session.add(
            [source.randrange(1, 46) for _ in range(3 + 4 * index)],
            Options(TOKENS, SAMPLED if index == 1 else SamplingParams(), seed=index),
        )
        for index in range(prompts)
    ]


def tensors(runner: DeviceRunner) -> dict[str, torch.Tensor]:
    """Return all tensors of requests and their KV by name, without what is nobody's: the dump and free places."""
    state = runner.state
    found = {**state.columns, **state.tokens, **state.wide, "text": state.text[:, :-1]}
    for name, tree in state.trees.items():
        found |= {f"{name}.{part}": getattr(tree, part) for part in TREE_PARTS}
    rows = {name: values[: state.dump] for name, values in found.items()}
    return {**rows, "kv": runner.machine.cache.data, "free": state.free[:-1], "count": state.free_count}


def outputs(session: Session) -> list[list[int]]:
    """Run a session to its end, and return its tokens."""
    session.run()
    return [session.result(number).token_ids for number in sorted(session._streams)]


@pytest.mark.parametrize("spec", ["isd", "draft_lm", "sdar", "uno_tree"])
def test_a_replay_is_the_call_bit_for_bit(spec: str, model: Transformer) -> None:
    """Every tensor is what the call without a graph leaves, not only the tokens."""
    eager, runner = session_of(spec, model, Resident(CpuPlace()))
    graphs, replayed = session_of(spec, model, Resident(CpuPlace(graphs=True), require_graphs=True))
    assert outputs(eager) == outputs(graphs)
    assert 0 == replayed.graphs.eager < replayed.graphs.replayed
    expected, found = tensors(runner), tensors(replayed)
    assert [] == [name for name in expected if not torch.equal(expected[name], found[name])]


class Listing(CpuPlace):
    """Know what would be captured; a replay is the call itself."""

    def __init__(self) -> None:
        super().__init__(graphs=True)

    def capture(self, call: Callable[[], list[torch.Tensor]]) -> Graph:
        """Capture nothing."""
        outputs: list[torch.Tensor] = []

        def replay() -> None:
            outputs[:] = call()

        return Graph(replay, outputs)


def test_each_phase_and_size_has_a_graph_of_its_own(model: Transformer) -> None:
    """Draft and verify at each batch size stand side by side, and none is captured twice (13.5, G4)."""
    session, runner = session_of("linear_spec", model, Resident(Listing()), lines=2, prompts=1)
    told: list[tuple[str, int, int]] = []
    runner.capture(lambda *report: told.append(report))
    keys = runner.graphs.held
    phases = {("mail",), ("draft",), ("verify",)}
    assert phases | {("prefill",), ("draft", "prefill"), ("verify", "prefill")} == {k.states for k in keys}
    assert {1, 2} == {key.bucket for key in keys if key.states in phases}
    # Mail of pages alone and all other, and chunks of 1, 2, 3, ..., 12 pieces: two texts of 161 tokens at most.
    pieces = [1, 2, 3, 4, 6, 8, 12]
    assert pieces == sorted(key.bucket for key in keys if key.states == ("prefill",))
    assert len(keys) == len(set(keys)) == told[-1][2] == 2 * (4 + 2 * len(pieces)) + len(pieces)
    session.iterate()
    add(session, 2)
    outputs(session)
    assert len(keys) == runner.graphs.captured
    assert 0 == runner.graphs.eager < runner.graphs.replayed


# States that are met alone, in pairs and all together; blocks of rows that see each other; a chain of launches.
MET = ("uno_adaptive", "sdar", "isd", "eagle3")


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("spec", MET)
def test_nothing_is_captured_once_requests_come(spec: str, lag: int, model: Transformer) -> None:
    """A late capture would let everybody wait: chunks of many prompts or long ones, alone and with decode rows."""
    table = compile_table(load(spec).spec, sizes(spec, 4))
    session = Session(
        table,
        model,
        pool=Pool(60, 4),
        policy=Policy(max_running=3, prefill=Prefill(tokens=40), lag=lag),
        drafters=random_drafters(table, model),
        resident=Resident(Listing(), require_graphs=True),
    )
    runner = session.runner
    assert isinstance(runner, DeviceRunner)
    runner.capture()
    before = runner.graphs.captured
    add(session, 7)
    session.run()
    assert before == runner.graphs.captured
    assert 0 == runner.graphs.eager < runner.graphs.replayed
    # A policy that is switched to may cut longer chunks: they run in more launches.
    session.switch(Policy(max_running=3, prefill=Prefill(tokens=400), lag=lag))
    source = random.Random(4)
    for length in (90, 20, 70):
        session.add([source.randrange(1, 46) for _ in range(length)], Options(2))
    session.run()
    assert before == runner.graphs.captured


def test_too_many_graphs_of_chunks_with_phases_are_not_made(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks then run beside the phases: no graph is captured late, and none is left out."""
    monkeypatch.setattr("fsm_spec.executor.device.orders.MOST_MIXED", 3)
    expected = outputs(session_of("linear_spec", model, Resident(CpuPlace()))[0])
    session, runner = session_of("linear_spec", model, Resident(Listing(), require_graphs=True), prompts=0)
    runner.capture()
    before = runner.graphs.held
    assert {("mail",), ("draft",), ("verify",), ("prefill",)} == {key.states for key in before}
    add(session, 3)
    assert expected == outputs(session)
    assert before == runner.graphs.held
    assert 0 == runner.graphs.eager


@pytest.mark.parametrize(("spec", "state", "launches"), [("uno_adaptive", "verify", 1), ("isd", "verify", 2)])
def test_rows_that_emit_alike_take_one_launch(
    spec: str, state: str, launches: int, model: Transformer
) -> None:
    """Where rows emit different tokens, which one is taken has to be known before a stop token is looked for."""
    _, runner = session_of(spec, model, Resident(CpuPlace()))
    phase = next(each for each in runner.device.phases() if each.states == (state,))
    tape = Tape()
    with torch.inference_mode():
        tape.record(lambda: phase(phase.blank(1)))
    assert launches == sum(func.name() == "fsm_spec::table_step" for func, *_ in tape._steps)


def test_capture_changes_nothing(model: Transformer) -> None:
    """Graphs are captured on lines that are nobody's, while others may live."""
    session, runner = session_of("isd", model, Resident(CpuPlace(graphs=True)), lines=1, prompts=1)
    session.iterate()
    before = {name: values.clone() for name, values in tensors(runner).items()}
    runner.capture()
    after = tensors(runner)
    assert [] == [name for name in before if not torch.equal(before[name], after[name])]


@pytest.mark.parametrize("fuse", [False, True])
def test_an_adapter_that_comes_later_acts(fuse: bool, model: Transformer) -> None:  # noqa: FBT001 -- a parameter
    """Graphs captured before it, or under another one, are dropped (13.5, G1, G3, G5, G6)."""
    wanted = []
    for seed in (None, 1, 2):
        model.adapter = None if seed is None else random_adapter(model.config, torch.float64, seed=seed)
        session, _ = session_of("linear_spec", model, Resident(CpuPlace(), fuse=False))
        session.run()
        wanted.append([session.result(number) for number in range(3)])
    model.adapter = None
    session, runner = session_of("linear_spec", model, Resident(CpuPlace(graphs=True), fuse=fuse))
    session.run()
    found = [[session.result(number) for number in range(3)]]
    for seed in (1, 2):
        # The same name and, as the first is gone, perhaps the same place in memory.
        made = random_adapter(model.config, torch.float64, seed=seed)
        model.adapter = replace(made, name="adapter")
        numbers = add(session, 3)
        session.run()
        found.append([session.result(number) for number in numbers])
        assert 1 == len({key.view for key in runner.graphs.held})
    assert wanted == found
    # Tokens are the target's own; what an adapter changes is how many rounds they take.
    assert 3 == len({tuple(result.rounds for result in results) for results in wanted})


def test_an_adapter_changes_what_gated_rows_draft(model: Transformer) -> None:
    """Drafts are the adapter's, fused or gated: the laws of the draft pass differ with it and agree between both."""
    laws = []
    for adapter, fuse in ((None, False), (1, False), (1, True)):
        model.adapter = None if adapter is None else random_adapter(model.config, torch.float64, seed=adapter)
        session, runner = session_of("linear_spec", model, Resident(CpuPlace(), fuse=fuse), prompts=1)
        session.iterate()
        session.iterate()
        laws.append(runner.state.tokens["drafts"][0].clone())
    assert not torch.equal(laws[0], laws[1])
    assert torch.equal(laws[1], laws[2])


def test_padding_and_free_pages_are_never_seen(model: Transformer) -> None:
    """A batch that is padded, and pages full of NaN that nobody holds: the tokens are the same (13.5, G7, G15)."""
    session, runner = session_of("isd", model, Resident(CpuPlace(graphs=True)), lines=7, prompts=3)
    expected = outputs(session_of("isd", model, Resident(CpuPlace()))[0])
    runner.machine.cache.data.fill_(torch.nan)
    line = runner.state.padding
    before = {name: values[line].clone() for name, values in tensors(runner).items() if len(values) > line}
    assert expected == outputs(session)
    after = tensors(runner)
    names = [name for name in before if name not in ("kv", "free", "count")]
    assert [] == [name for name in names if not torch.equal(before[name], after[name][line])]


def test_no_tensor_of_requests_is_bound_anew(model: Transformer) -> None:
    """A graph writes where it was captured; a tensor that another one took the place of would be lost (13.5, G11)."""
    session, runner = session_of("draft_lm", model, Resident(CpuPlace()))
    places = {name: values.data_ptr() for name, values in tensors(runner).items()}
    outputs(session)
    assert places == {name: values.data_ptr() for name, values in tensors(runner).items()}


def test_the_double_keeps_the_tensors_of_its_capture() -> None:
    """It misses what a graph misses: a tensor bound anew is not read, one that is written is."""
    held = {"x": torch.ones(2), "y": torch.zeros(2)}
    tape = Tape()
    out = tape.record(lambda: held["x"] * 2 + held["y"])
    held["x"].fill_(3.0)
    held["y"] = torch.full((2,), 100.0)
    tape.replay()
    assert [6.0, 6.0] == out.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: 1 if x.sum() > 0 else 0,
        lambda x: x.masked_select(x > 0),
    ],
    ids=["item", "nonzero", "bool index", "if", "masked_select"],
)
def test_the_double_refuses_what_a_graph_cannot_hold(call: Callable[[torch.Tensor], object]) -> None:
    """Waiting for the device, and sizes that depend on data."""
    with pytest.raises(CaptureRefused, match=r"depends on data|waits for the device"):
        Tape().record(lambda: call(torch.ones(3)))


class Refusing(CpuPlace):
    """Refuse every capture."""

    def __init__(self) -> None:
        super().__init__(graphs=True)

    def capture(self, call: object) -> Graph:
        """Refuse."""
        del call
        raise CaptureRefused("aten::item waits for the device")


def test_without_a_graph_a_phase_runs_and_says_why(model: Transformer) -> None:
    """One warning a phase, with the reason; where graphs are required it is an error."""
    expected = outputs(session_of("ar", model, Resident(CpuPlace()))[0])
    session, runner = session_of("ar", model, Resident(Refusing()))
    with pytest.warns(UserWarning, match="has no graph: aten::item waits") as said:
        assert expected == outputs(session)
    assert [1, 1] == [sum(name in str(each.message) for each in said) for name in ("decode", "mail")]
    assert runner.graphs.eager > 0
    session, _ = session_of("ar", model, Resident(Refusing(), require_graphs=True))
    with pytest.raises(UserError, match="run without --require-graphs"), warnings.catch_warnings():
        session.run()


def test_buckets_hold_every_number_of_requests() -> None:
    """Powers of two, and the most."""
    assert [1, 2, 4, 6] == buckets(6)
    assert [1, 2, 4, 8] == buckets(8)
    assert [1] == buckets(1)
