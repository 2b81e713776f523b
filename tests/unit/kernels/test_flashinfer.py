"""FlashInfer behind the signature of `paged_attention`: its plans, against a double of its interface.

The double attends by what a plan says, so that a wrong plan gives wrong numbers here too. That its methods take what
the real ones take was compared with flashinfer-python 0.6.18.post1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attention_cases import Shape, build, shapes
from hypothesis import given, settings
from torch import Tensor

from fsm_spec.kernels import flashinfer
from fsm_spec.kernels.fixed.attention import pack_mask, paged_attention
from fsm_spec.kernels.flashinfer import FlashInferAttention, Sight, sight_of


class Double:
    """Take the arguments of either wrapper of FlashInfer's, refuse what it refuses, and attend by the plan."""

    made: list[Double]

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        *,
        use_cuda_graph: bool = False,
        backend: str = "auto",
        **buffers: Any,  # noqa: ANN401 -- as the two wrappers differ
    ) -> None:
        assert (torch.uint8, "NHD", "fa2") == (float_workspace_buffer.dtype, kv_layout, backend)
        assert not float_workspace_buffer.any()
        self.buffers, self.graph = buffers, use_cuda_graph
        self.made.append(self)

    def _keep(
        self,
        rows: Tensor,
        indptr: Tensor,
        slots: Tensor,
        last: Tensor,
        sizes: tuple[int, ...],
        **formats: Any,  # noqa: ANN401 -- as above
    ) -> None:
        # Tensors that the plan reads on the host have to be there, or it waits for the device.
        assert {"cpu"} == {tensor.device.type for tensor in (rows, indptr, last)}
        assert {torch.int32} == {tensor.dtype for tensor in (rows, indptr, slots, last)}
        assert (int(indptr[-1]), 1.0) == (len(slots), formats["sm_scale"])
        assert last.tolist() == [1] * (len(indptr) - 1)
        for name, tensor in self.buffers.items():
            if name.endswith(("indices_buf", "indices_buffer")):
                assert len(slots) <= len(tensor), (
                    "The length of paged_kv_indices exceeds the allocated buffer size."
                )
        mask = formats.get("custom_mask")
        if mask is not None and self.graph:
            # FlashInfer packs each request's bits and begins each with a byte.
            lengths = (rows.diff() * indptr.diff()).tolist()
            assert len(self.buffers["custom_mask_buf"]) >= sum(-(-length // 8) for length in lengths)
        self.planned = (rows.tolist(), indptr.tolist(), slots, sizes, formats)

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        """Attend, request by request."""
        rows, indptr, slots, (heads, kv_heads, head_dim, page), formats = self.planned
        assert (heads, head_dim) == tuple(q.shape[1:])
        assert (2, page, kv_heads, head_dim) == tuple(paged_kv_cache.shape[1:])
        out, read = torch.empty_like(q), 0
        for request in range(len(rows) - 1):
            query = q[rows[request] : rows[request + 1]]
            keys, values = paged_kv_cache[slots[indptr[request] : indptr[request + 1]].long(), :, 0].unbind(1)
            seen = torch.ones(len(query), len(keys), dtype=torch.bool)
            if formats.get("causal"):
                seen = seen.tril(len(keys) - len(query))
            if formats.get("custom_mask") is not None:
                seen = formats["custom_mask"][read : read + seen.numel()].view(seen.shape)
                read += seen.numel()
            keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in (keys, values))
            scores = torch.einsum("rhd,khd->hrk", query, keys).masked_fill(~seen, -torch.inf)
            # What is not seen has no weight, whatever it holds.
            values = torch.where(seen.any(0)[:, None, None], values, 0)
            out[rows[request] : rows[request + 1]] = torch.einsum("hrk,khd->rhd", scores.softmax(-1), values)
        return out


class DoublePrefill(Double):
    """Stand for BatchPrefillWithPagedKVCacheWrapper."""

    def plan(  # noqa: PLR0913 -- FlashInfer's
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        custom_mask: Tensor | None = None,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """Keep a plan."""
        assert q_data_type == kv_data_type
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        formats = {"custom_mask": custom_mask, "causal": causal, "sm_scale": sm_scale}
        self._keep(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, sizes, **formats)


class DoubleDecode(Double):
    """Stand for BatchDecodeWithPagedKVCacheWrapper."""

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        *sizes: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float | None = None,
    ) -> None:
        """Keep a plan: one row a request."""
        assert q_data_type == kv_data_type
        assert self.buffers["use_tensor_cores"] is True
        rows = torch.arange(len(indptr), dtype=torch.int32)
        self._keep(rows, indptr, indices, last_page_len, sizes, sm_scale=sm_scale)


@pytest.fixture(scope="module", autouse=True)
def made() -> Iterator[list[Double]]:
    """Put the double in FlashInfer's place; give the wrappers that are made."""
    Double.made = []
    with pytest.MonkeyPatch.context() as patch:
        module = SimpleNamespace(
            BatchPrefillWithPagedKVCacheWrapper=DoublePrefill, BatchDecodeWithPagedKVCacheWrapper=DoubleDecode
        )
        patch.setitem(sys.modules, "flashinfer", module)
        patch.setattr(flashinfer, "WORKSPACE_BYTES", 64)
        flashinfer._form.cache_clear()
        flashinfer._workspace.cache_clear()
        yield Double.made
        flashinfer._form.cache_clear()
        flashinfer._workspace.cache_clear()


@given(shapes())
@settings(max_examples=60)
def test_live_rows_equal_the_reading(shape: Shape) -> None:
    """Any block may be masked, causal by chance, or seen in full; each goes another way through FlashInfer."""
    case = build(shape, torch.float64)
    query = case.query.nan_to_num()
    found = flashinfer.paged_attention(query, case.cache.nan_to_num(), *case.arguments[2:])
    torch.testing.assert_close(found[case.live], case.expected[case.live], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "rows", "live", "expected", "wrapper"),
    [
        ("causal", 4, (4, 2), Sight.CAUSAL, DoublePrefill),
        ("bidirectional", 4, (4, 4), Sight.FULL, DoublePrefill),
        ("bidirectional", 4, (4, 2), Sight.MASKED, DoublePrefill),
        ("groups", 4, (4, 4), Sight.MASKED, DoublePrefill),
        ("causal", 1, (1, 1), Sight.FULL, DoubleDecode),
    ],
)
def test_the_cheapest_wrapper_is_taken(
    kind: str, rows: int, live: tuple[int, int], expected: Sight, wrapper: type[Double], made: list[Double]
) -> None:
    """A mask that is read where none is needed costs as much as a quarter of the scores."""
    case = build(Shape(live, (9, 5), rows, 0, 4, 1, 2, 16, kind, 5))
    assert expected is sight_of(case.mask, case.block_slots)
    flashinfer._form.cache_clear()
    arguments = (case.query.nan_to_num(), case.cache.nan_to_num(), *case.arguments[2:])
    torch.testing.assert_close(
        flashinfer.paged_attention(*arguments)[case.live], paged_attention(*case.arguments)[case.live]
    )
    assert type(made[-1]) is wrapper
    assert not made[-1].graph


@pytest.mark.parametrize("sight", [Sight.CAUSAL, Sight.MASKED])
def test_graph_mode_keeps_its_buffers(sight: Sight, made: list[Double]) -> None:
    """A plan that outgrows the buffers of a captured wrapper would write past them."""
    case = build(Shape((3, 3), (9, 5), 3, 0, 4, 1, 2, 16, "causal", 5))
    form = FlashInferAttention((2, 3, 2, 16), 1, torch.float32, torch.device("cpu"), sight, most_slots=20)
    assert made[-1].graph
    for context in ([9, 5], [4, 4], [0, 0]):
        form.plan(case.block_table, context, case.block_slots, case.mask, 4)
        lengths = torch.tensor(context).int()
        arguments = (case.query, case.cache.nan_to_num())
        expected = paged_attention(*arguments, case.block_table, lengths, *case.arguments[4:])
        torch.testing.assert_close(form.run(*arguments), expected)
    with pytest.raises(AssertionError, match="exceeds the allocated buffer size"):
        form.plan(case.block_table, [10, 5], case.block_slots, case.mask, 4)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    """What FlashInfer gives for such a row is not said anywhere; the runner's padding must not depend on it."""
    case = build(Shape((2,), (0,), 2, 0, 4, 1, 1, 16, "causal", 5))
    blind = pack_mask(torch.zeros(1, 2, 2, dtype=torch.bool))
    found = flashinfer.paged_attention(*case.arguments[:5], blind, 4)
    assert not found.any()
