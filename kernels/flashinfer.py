"""FlashInfer (arXiv:2501.01005) as another form of `paged_attention`: its kernels, planned by the host.

The torch readings are `kernels/fixed/attention.py` and `kernels/attention.py`. Written for flashinfer-python 0.6.18,
with `backend="fa2"`, the one that takes custom masks and serves decode rows on tensor cores; nothing here has run on
a GPU yet, and tests hold the arguments of its plans to a double of its interface.

Every slot is a page of FlashInfer's: our cache [slots, 2, kv_heads, head_dim] is its layout of pages of one slot, so
that a block's slots may lie anywhere. A plan needs the lengths of prefixes on the host; the device's own runner, which
knows them on the device only, takes the Triton kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache as remembered
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.fixed.attention import unpack_mask

# What FlashInfer's documentation asks for.
WORKSPACE_BYTES = 128 << 20
# Shapes whose wrappers are kept; a wrapper holds 16 MB of its own.
_KEPT = 16


class Sight(Enum):
    """Say what rows see of their block; FlashInfer runs the first two without reading a mask."""

    CAUSAL = "causal"
    """Row i sees block slots 0 to i: as many slots as rows."""
    FULL = "full"
    MASKED = "masked"


class FlashInferAttention:
    """Hold a wrapper for one shape of launch: `plan` once a forward, then `run` once a layer.

    With `most_slots`, the most slots that all requests see together, the wrapper keeps its buffers, and a graph may
    hold `run`; `plan` then has to come before each replay.
    """

    def __init__(
        self,
        query: tuple[int, int, int, int],
        kv_heads: int,
        dtype: torch.dtype,
        device: torch.device,
        sight: Sight,
        most_slots: int | None = None,
    ) -> None:
        """Make the wrapper for queries [n, R, heads, head_dim]."""
        self.requests, self.rows, self.heads, self.head_dim = query
        self.kv_heads = kv_heads
        self.dtype = dtype
        self.device = device
        self.sight = sight
        self.graph = most_slots is not None
        # A lone row sees its own slot under either; decode wrappers know no other.
        self.decodes = self.rows == 1 and sight is not Sight.MASKED
        self.wrapper = self._decode(most_slots) if self.decodes else self._prefill(most_slots)
        self.blind: Tensor | None = None

    def _ints(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self.device)

    def _decode(self, most_slots: int | None) -> Any:  # noqa: ANN401 -- FlashInfer's
        buffers = {}
        if most_slots is not None:
            buffers = {
                "paged_kv_indptr_buffer": self._ints(self.requests + 1),
                "paged_kv_indices_buffer": self._ints(most_slots),
                "paged_kv_last_page_len_buffer": self._ints(self.requests),
            }
        return import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
            _workspace(self.device),
            "NHD",
            use_cuda_graph=self.graph,
            use_tensor_cores=True,
            backend="fa2",
            **buffers,
        )

    def _prefill(self, most_slots: int | None) -> Any:  # noqa: ANN401 -- FlashInfer's
        buffers = {}
        if most_slots is not None:
            buffers = {
                "qo_indptr_buf": self._ints(self.requests + 1),
                "paged_kv_indptr_buf": self._ints(self.requests + 1),
                "paged_kv_indices_buf": self._ints(most_slots),
                "paged_kv_last_page_len_buf": self._ints(self.requests),
            }
            if self.sight is Sight.MASKED:
                # Packed by request, each beginning a byte.
                size = self.requests + self.rows * most_slots // 8
                buffers["custom_mask_buf"] = torch.zeros(size, dtype=torch.uint8, device=self.device)
                buffers["mask_indptr_buf"] = self._ints(self.requests + 1)
        return import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper(
            _workspace(self.device), "NHD", use_cuda_graph=self.graph, backend="fa2", **buffers
        )

    def plan(
        self, block_table: Tensor, context: Sequence[int], block_slots: Tensor, mask: Tensor, page_size: int
    ) -> None:
        """Lay out what each request sees; tensors as `paged_attention` takes them, `context` on the host.

        Under CAUSAL and FULL the mask is not read; rows at a block's end that have no slot see what does not matter.
        """
        block = block_slots.shape[1]
        lengths = [length + block for length in context]
        starts = [0, *accumulate(lengths)]
        request = self._spread(lengths)
        place = torch.arange(starts[-1], device=self.device) - self._on_device(starts)[request]
        behind = place - self._on_device(context)[request]
        own = block_slots[request, behind.clamp(min=0)].clamp(min=0)
        page = block_table[request, (place // page_size).clamp(max=block_table.shape[1] - 1)]
        slots = torch.where(behind >= 0, own, page * page_size + place % page_size).int()
        indptr = torch.tensor(starts, dtype=torch.int32)
        last = torch.ones(self.requests, dtype=torch.int32)
        sizes = (self.heads, self.kv_heads, self.head_dim, 1)
        # Queries come scaled.
        formats: dict[str, Any] = {"q_data_type": self.dtype, "kv_data_type": self.dtype, "sm_scale": 1.0}
        self.blind = None
        if self.decodes:
            self.wrapper.plan(indptr, slots, last, *sizes, **formats)
            return
        if self.sight is Sight.MASKED:
            seen = unpack_mask(mask, block) & (block_slots >= 0).unsqueeze(1)
            seen = seen.expand(self.requests, -1, -1)
            formats["custom_mask"] = self._masked(seen, context, lengths)
            self.blind = ~seen.any(2) & (self._on_device(context) == 0).unsqueeze(1)
        rows = torch.arange(self.requests + 1, dtype=torch.int32) * self.rows
        self.wrapper.plan(rows, indptr, slots, last, *sizes, causal=self.sight is Sight.CAUSAL, **formats)

    def _masked(self, seen: Tensor, context: Sequence[int], lengths: list[int]) -> Tensor:
        """Lay the mask out as FlashInfer reads it: by request, row and slot, all prefixes seen -> bool, flat."""
        sizes = [self.rows * length for length in lengths]
        request = self._spread(sizes)
        starts = self._on_device([0, *accumulate(sizes)])
        place = torch.arange(len(request), device=self.device) - starts[request]
        length = self._on_device(lengths)[request]
        behind = place % length - self._on_device(context)[request]
        return (behind < 0) | seen[request, place // length, behind.clamp(min=0)]

    def _spread(self, lengths: list[int]) -> Tensor:
        """Repeat the number of each request as often as its length."""
        counts = self._on_device(lengths)
        return torch.repeat_interleave(
            torch.arange(self.requests, device=self.device), counts, output_size=sum(lengths)
        )

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def run(self, query: Tensor, cache: Tensor) -> Tensor:
        """Attend queries [n, R, heads, head_dim] over one layer's cache, as planned."""
        out: Tensor = self.wrapper.run(query.flatten(0, 1), cache.unsqueeze(2)).view(query.shape)
        if self.blind is None:
            return out
        # Of a row that sees nothing FlashInfer promises nothing.
        return out.masked_fill(self.blind[:, :, None, None], 0)


def paged_attention(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    context: Tensor,
    block_slots: Tensor,
    mask: Tensor,
    page_size: int,
) -> Tensor:
    """Compute the op `paged_attention` with FlashInfer, planning anew; waits for the device to read the lengths."""
    sight = sight_of(mask, block_slots)
    device = query.device
    form = _form(tuple(query.shape), cache.shape[2], cache.dtype, device, sight)
    form.plan(block_table, context.tolist(), block_slots, mask, page_size)
    return form.run(query.to(cache.dtype), cache).to(query.dtype)


def sight_of(mask: Tensor, block_slots: Tensor) -> Sight:
    """Read a packed mask and the block's slots on the host, and say which of the kinds it is."""
    rows, block = mask.shape[1], block_slots.shape[1]
    seen, there = unpack_mask(mask, block).cpu(), (block_slots >= 0).cpu()
    if bool(seen.all()) and bool(there.all()):
        return Sight.FULL
    # Slots that are missing at the end are seen by no row that has one.
    front = bool((there[:, 1:] <= there[:, :-1]).all())
    live = there[:, -rows:].unsqueeze(2)
    if rows == block and front and bool(((seen == torch.ones(rows, rows).tril().bool()) | ~live).all()):
        return Sight.CAUSAL
    return Sight.MASKED


@lru_cache(maxsize=_KEPT)
def _form(
    query: tuple[int, int, int, int], kv_heads: int, dtype: torch.dtype, device: torch.device, sight: Sight
) -> FlashInferAttention:
    return FlashInferAttention(query, kv_heads, dtype, device, sight)


@remembered
def _workspace(device: torch.device) -> Tensor:
    """Give the scratch memory of a device, which has to be zeroed before its first use."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
