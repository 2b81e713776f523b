"""Where the resident runner may run, and what it refuses: each with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.device.place import CpuPlace, CudaPlace, find_place, require_bytes
from fsm_spec.executor.device.resident import Resident, resident_of
from fsm_spec.executor.device.tape import CaptureRefused
from fsm_spec.executor.device.weights import bytes_of, moved
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.request import Controls
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool


def session(policy: Policy | None = None) -> Session:
    """Return a resident session on the CPU."""
    table = compile_table(load("ar").spec, {})
    policy = policy or Policy(max_running=2)
    return Session(table, tiny_model(), pool=Pool(8, 8), policy=policy, resident=Resident(CpuPlace()))


def test_a_build_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the build and a way out."""
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError, match=r"built without CUDA; install a CUDA build .* --device cpu"):
        find_place("cuda")


def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a driver is passed on, with what to update."""

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nMore.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", too_old)
    with pytest.raises(UserError, match=r"too old \(found version 11040\); update the NVIDIA driver"):
        find_place("cuda")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES"):
        find_place("cuda")


def test_a_gpu_before_ampere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels need what it lacks."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    with pytest.raises(UserError, match=r"Tesla V100 has compute capability 7\.0, .* need 8\.0"):
        find_place("cuda")
    with pytest.raises(UserError, match="there are 1 CUDA devices"):
        find_place("cuda:3")


def test_missing_memory_is_counted() -> None:
    """How much is missing, and which knob."""

    class Full(CpuPlace):
        def spare_bytes(self) -> int:
            return 2**30

    with pytest.raises(
        UserError, match=r"needs 3\.0 GiB .* 1\.0 GiB free: 2\.0 GiB are missing; lower --pages"
    ):
        require_bytes(Full(), 3 * 2**30, "the KV cache", "lower --pages")
    require_bytes(Full(), 2**30, "the KV cache", "lower --pages")


def test_the_options_choose_a_runner() -> None:
    """The CPU's own runner unless it is asked for the other; graphs only where something captures them."""
    assert resident_of("cpu", resident=False, require_graphs=False) is None
    chosen = resident_of("cpu", resident=True, require_graphs=True)
    assert chosen is not None
    assert chosen.place.graphs
    with pytest.raises(UserError, match="add --resident"):
        resident_of("cpu", resident=False, require_graphs=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(controls=Controls(Adjustment(bias=((1, 1.0),) * 1025))), "a bias for 1025 tokens"),
        (Options(logprobs=21), "the 21 most probable tokens"),
        (Options(stop_ids=tuple(range(17))), "17 stop tokens"),
    ],
)
def test_wishes_that_the_host_fulfils_are_refused_before_they_queue(options: Options, said: str) -> None:
    """The session goes on without them."""
    run = session()
    with pytest.raises(UserError, match=said):
        run.add([1, 2, 3], options)
    assert not run.has_work
    number = run.add([1, 2, 3], Options(3))
    run.run()
    assert 3 == len(run.result(number).token_ids)


def test_logprobs_of_a_spec_that_fills_in_any_order_are_refused() -> None:
    """A token there has no text before it that its law was taken for."""
    table = compile_table(load("sdar").spec, {})
    run = Session(
        table, tiny_model(), pool=Pool(40, 8), policy=Policy(max_running=1), resident=Resident(CpuPlace())
    )
    with pytest.raises(UserError, match="sdar fills places in any order"):
        run.add([1, 2, 3], Options(logprobs=1))


def test_a_policy_beyond_the_lines_is_refused() -> None:
    """Lines are made once; and a host does not begin to plan ahead on its way."""
    run = session()
    with pytest.raises(UserError, match="lets 3 requests run, and this run has lines for 2"):
        run.switch(Policy(max_running=3))
    with pytest.raises(UserError, match="plans ahead"):
        run.switch(Policy(max_running=2, lag=1))
    run.switch(Policy(max_running=1))
    assert 1 == run.engine.policy.max_running


def test_more_requests_than_a_grid_has_programs_are_refused() -> None:
    """A launch would fail on a GPU: requests times KV heads stand along one axis of it."""
    with pytest.raises(UserError, match="takes 32767 in a launch; lower max_running"):
        session(Policy(max_running=32_768))


class _Graph:
    """Stand in for `torch.cuda.graph`, which leaves its stream current where its end fails."""

    def __init__(self, streams: SimpleNamespace, stream: str) -> None:
        self.streams, self.stream = streams, stream

    def __enter__(self) -> None:
        self.before, self.streams.current = self.streams.current, self.stream

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.streams.current = self.before


def test_a_refused_capture_says_why_and_leaves_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went wrong first is the reason, and what runs behind it runs where it did before; no memory is an error."""
    streams = SimpleNamespace(current="main")

    class Side(str):
        __slots__ = ()

        def wait_stream(self, _: object) -> None:
            """Do nothing."""

    @contextmanager
    def stream(wanted: str) -> Iterator[None]:
        before, streams.current = streams.current, wanted
        try:
            yield
        finally:
            streams.current = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Side("side"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Side(streams.current))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, stream, **__: _Graph(streams, stream))
    place = CudaPlace(torch.device("cuda"))
    seen: list[str] = []

    def call(error: Exception | None) -> list[torch.Tensor]:
        seen.append(streams.current)
        if error is not None and len(seen) > 2:
            raise error
        return []

    assert [] == place.capture(lambda: call(None)).outputs
    assert (["side"] * 3, "main") == (seen, streams.current)
    seen.clear()
    pool = place._pool
    with pytest.raises(CaptureRefused, match="operation not permitted"):
        place.capture(lambda: call(RuntimeError("operation not permitted when stream is capturing\nMore.")))
    assert "main" == streams.current
    assert pool is not place._pool
    seen.clear()
    with pytest.raises(UserError, match="lower --pages"):
        place.capture(lambda: call(torch.OutOfMemoryError("CUDA out of memory")))


def test_a_moved_model_shares_what_was_shared() -> None:
    """Embedding and head of a tied model stay one tensor, and count once."""
    model = tiny_model(tied=True)
    copied = moved(model, lambda tensor: tensor.clone())
    assert copied.embedding is copied.head
    assert copied.embedding is not model.embedding
    assert bytes_of(copied) == bytes_of(model)
    assert copied.layers[0].qkv.data_ptr() != model.layers[0].qkv.data_ptr()
