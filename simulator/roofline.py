"""The formula behind `cost.py`: what one launch takes, over plain arrays, so that compiled runs read the same one.

Measured kernel tables stand behind the constants, where there are any.
A launch is a row of counts (`Work`, in the order of its fields), a cost model a row of constants and a few curves.
Each part of a launch is a row of `parts`: its bounds and its time in nanoseconds, its operations and compulsory bytes.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202 - numba infers types

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fsm_spec.jit import jit

NS: Final = 1e9
# Counts of a launch: places in `work`, in the order of `Work`.
(REQUESTS, ROWS, LOGITS_ROWS, ADAPTER_ROWS, CONTEXT_TOKENS, ATTENTION_PAIRS, SAMPLED_ROWS, PREFILL_ROWS,
 PREFILL_CONTEXT, PREFILL_PAIRS, DRAFTING_ROWS, DRAFTING_CONTEXT) = range(12)  # fmt: skip
COUNTS: Final = DRAFTING_CONTEXT + 1
# Parts of a launch: rows of `parts`, in the order in which a forward runs them; those that are absent stay 0.
PARTS: Final = (
    "blocks", "experts", "attention", "prefill attention", "activations", "adapter", "head", "sampling", "all-reduce",
    "drafter",
)  # fmt: skip
(BLOCKS, EXPERTS, ATTENTION, PREFILL_ATTENTION, ACTIVATIONS, ADAPTER, HEAD, SAMPLING, ALL_REDUCE,
 DRAFTER) = range(len(PARTS))  # fmt: skip
# What is known of a part: columns of `parts`. It takes START + max(FLOOR, COMPUTE and MEMORY joined by a power).
COMPUTE_NS, MEMORY_NS, FLOOR_NS, START_NS, PART_NS, FLOPS, BYTES = range(7)
COLUMNS: Final = BYTES + 1
ROW_COUNTS: Final = 4
# Efficiency curves: places in `curves`, each with its amounts, its shares, and whether it keeps its time below.
BLOCKS_MFU, GEMM_MFU, DECODE_MBU, PREFILL_MFU, REDUCE_SHARE = range(5)
AMOUNTS, SHARES, LATENCY = range(3)
# What a cost model knows before any launch: places in `constants`.
(BANDWIDTH, BLOCKS_PEAK, BF16_PEAK, BLOCKS_PARAMETERS, BLOCKS_BYTES, BLOCKS_MBU, BLOCKS_OVERLAP, BLOCKS_START_NS,
 EXPERT_COUNT, EXPERTS_A_ROW, EXPERT_PARAMETERS, EXPERT_BYTES, EXPERT_START_NS, GEMM_MBU, GEMM_OVERLAP,
 ADAPTER_PARAMETERS, ADAPTER_START_NS, HEAD_PARAMETERS, HEAD_START_NS, PAIR_FLOPS, LAYER_KV_BYTES, KV_REFERENCE_BYTES,
 PAIR_REFERENCE, LAYERS, ATTENTION_FLOOR_NS, ROW_ACTIVATION_BYTES, ACTIVATION_FLOOR_NS, LOGITS_BYTES, SAMPLER_PASSES,
 SAMPLER_NS, ROW_REDUCE_BYTES, REDUCE_LINK_BYTES, LINK, REDUCE_FLOOR_NS, DRAFT_STEPS, DRAFT_PARAMETERS, DRAFT_ROWS,
 DRAFT_START_NS, DRAFT_KV_BYTES, REPLAY_NS, HOST_STEP_NS, HOST_SEQUENCE_NS, FUSED, OVERLAPPED) = range(44)  # fmt: skip
CONSTANTS: Final = OVERLAPPED + 1

Numbers = NDArray[np.float64]


@jit(sources=(__file__,))
def share(curve, amount):
    """Give the share of the peak that `amount` of work reaches, in (0, 1]: a power law between two points."""
    amounts, shares = curve[AMOUNTS], curve[SHARES]
    last = len(amounts) - 1
    if amount <= amounts[0]:
        return shares[0] * amount / amounts[0] if curve[LATENCY, 0] and amount > 0 else shares[0]
    if amount >= amounts[last]:
        return shares[last]
    right = 1
    while amounts[right] <= amount:
        right += 1
    low, high = amounts[right - 1], amounts[right]
    weight = math.log(amount / low) / math.log(high / low)
    return shares[right - 1] * math.exp(weight * math.log(shares[right] / shares[right - 1]))


@jit(sources=(__file__,))
def _close(part, overlap):
    """Fill in the time of a part; a power of 1 adds compute and memory, larger ones let them overlap, 0 fully."""
    compute, memory = part[COMPUTE_NS], part[MEMORY_NS]
    both = max(compute, memory)
    if overlap > 0 and both > 0:
        # Scaled by the larger one, so that no power runs over.
        both *= (1.0 + (min(compute, memory) / both) ** overlap) ** (1.0 / overlap)
    part[PART_NS] = part[START_NS] + max(part[FLOOR_NS], both)


@jit(sources=(__file__,))
def _linear(part, parameters, size, rows, peak, bandwidth, mfu, overlap):
    """Price linear layers: their `size` bytes of weights are read once, every row multiplies them."""
    part[FLOPS] = 2.0 * parameters * rows
    part[BYTES] = size
    part[COMPUTE_NS] = NS * part[FLOPS] / (peak * share(mfu, float(rows)))
    part[MEMORY_NS] = NS * size / bandwidth
    _close(part, overlap)


@jit(sources=(__file__,))
def _experts(part, constants, curves, rows):
    """Price a mixture's experts: those that any row chose are read once, if rows choose them evenly."""
    count, chosen = constants[EXPERT_COUNT], constants[EXPERTS_A_ROW]
    touched = count * (1.0 - (1.0 - chosen / count) ** rows)
    part[FLOPS] = 2.0 * constants[EXPERT_PARAMETERS] * chosen * rows
    part[BYTES] = constants[EXPERT_BYTES] * touched
    mfu = share(curves[BLOCKS_MFU], chosen * rows / count)
    part[COMPUTE_NS] = NS * part[FLOPS] / (constants[BLOCKS_PEAK] * mfu)
    part[MEMORY_NS] = NS * part[BYTES] / (constants[BANDWIDTH] * constants[BLOCKS_MBU])
    part[START_NS] = constants[EXPERT_START_NS]
    _close(part, constants[BLOCKS_OVERLAP])


@jit(sources=(__file__,))
def _attention(part, pairs, tokens, mfu, constants, curves):
    """Price attention of some rows: `tokens` of KV are read once, each pair costs two products a head."""
    layers = constants[LAYERS]
    part[FLOPS] = constants[PAIR_FLOPS] * pairs * layers
    moved = tokens * constants[LAYER_KV_BYTES]
    part[BYTES] = moved * layers
    mbu = share(curves[DECODE_MBU], moved / constants[KV_REFERENCE_BYTES])
    part[COMPUTE_NS] = NS * part[FLOPS] / (constants[BF16_PEAK] * mfu)
    part[MEMORY_NS] = NS * part[BYTES] / (constants[BANDWIDTH] * mbu)
    part[FLOOR_NS] = constants[ATTENTION_FLOOR_NS]
    _close(part, 0.0)


@jit(sources=(__file__,))
def _all_attention(parts, work, constants, curves):
    """Price the attention of prefill chunks and of the rows of rounds, each with kernels of its own."""
    chunk_rows, chunk_pairs = work[PREFILL_ROWS], work[PREFILL_PAIRS]
    rows, pairs = work[ROWS] - chunk_rows, work[ATTENTION_PAIRS] - chunk_pairs
    mfu = curves[PREFILL_MFU]
    if rows > 0:
        # A block's few rows share each key that is read, so only large sums of pairs are bound by compute.
        most = mfu[SHARES, mfu.shape[1] - 1]
        tokens = work[CONTEXT_TOKENS] - work[PREFILL_CONTEXT] + rows
        _attention(parts[ATTENTION], pairs, tokens, most, constants, curves)
    if chunk_rows > 0:
        # A causal prefill of n tokens has n^2 / 2 pairs; a shard with fewer heads is a smaller kernel.
        equal = share(mfu, math.sqrt(2.0 * chunk_pairs * constants[PAIR_REFERENCE]))
        tokens = work[PREFILL_CONTEXT] + chunk_rows
        _attention(parts[PREFILL_ATTENTION], chunk_pairs, tokens, equal, constants, curves)


@jit(sources=(__file__,))
def price(work, constants, curves, parts):
    """Fill in the parts of a launch that has rows; `parts` is float64 [PARTS, COLUMNS]."""
    _price_rows(work, constants, curves, parts)
    _price_context(work, constants, curves, parts)


@jit(sources=(__file__,))
def _price_context(work, constants, curves, parts):
    """Fill in the parts that depend on the context too, which moves with every launch."""
    for column in range(COLUMNS):
        parts[ATTENTION, column] = parts[PREFILL_ATTENTION, column] = parts[DRAFTER, column] = 0.0
    _all_attention(parts, work, constants, curves)
    _price_drafting(parts[DRAFTER], work, constants, curves)


@jit(sources=(__file__,))
def _price_drafting(part, work, constants, curves):
    """Price a draft model: its own forwards in this launch, or so many before each round of a spec that has none."""
    rounds = work[ROWS] - work[PREFILL_ROWS]
    if constants[DRAFT_STEPS]:
        if rounds > 0:
            rows = constants[DRAFT_ROWS] * min(work[REQUESTS], rounds)
            context = work[CONTEXT_TOKENS] - work[PREFILL_CONTEXT]
            _drafter(part, constants[DRAFT_STEPS], rows, context, constants, curves)
    elif constants[DRAFT_PARAMETERS] and work[DRAFTING_ROWS] > 0:
        _drafter(part, 1, work[DRAFTING_ROWS], work[DRAFTING_CONTEXT], constants, curves)


@jit(sources=(__file__,))
def _price_rows(work, constants, curves, parts):
    """Fill in the parts that counts of rows decide, to be kept for the next launch of as many."""
    bandwidth, peak, rows = constants[BANDWIDTH], constants[BF16_PEAK], work[ROWS]
    for part in range(len(parts)):
        for column in range(COLUMNS):
            parts[part, column] = 0.0
    parameters, size = constants[BLOCKS_PARAMETERS], constants[BLOCKS_BYTES]
    mfu, reach = curves[BLOCKS_MFU], bandwidth * constants[BLOCKS_MBU]
    # Weights with the adapter fused in are a second set, which a launch with rows of both reads too.
    views = 2.0 if constants[FUSED] and 0 < work[ADAPTER_ROWS] < rows else 1.0
    size *= views
    parts[BLOCKS, START_NS] = views * constants[BLOCKS_START_NS]
    _linear(
        parts[BLOCKS], parameters, size, rows, constants[BLOCKS_PEAK], reach, mfu, constants[BLOCKS_OVERLAP]
    )
    if constants[EXPERT_COUNT]:
        _experts(parts[EXPERTS], constants, curves, rows)
    # The kernels between the linear layers: norms, rotary embedding, activation.
    parts[ACTIVATIONS, MEMORY_NS] = NS * (constants[ROW_ACTIVATION_BYTES] * rows) / bandwidth
    parts[ACTIVATIONS, FLOOR_NS] = constants[ACTIVATION_FLOOR_NS]
    _close(parts[ACTIVATIONS], 0.0)
    mfu, reach, overlap = curves[GEMM_MFU], bandwidth * constants[GEMM_MBU], constants[GEMM_OVERLAP]
    if constants[ADAPTER_PARAMETERS] and work[ADAPTER_ROWS]:
        parameters = constants[ADAPTER_PARAMETERS]
        parts[ADAPTER, START_NS] = constants[ADAPTER_START_NS]
        _linear(parts[ADAPTER], parameters, 2.0 * parameters, work[ADAPTER_ROWS], peak, reach, mfu, overlap)
    if work[LOGITS_ROWS]:
        parameters = constants[HEAD_PARAMETERS]
        parts[HEAD, START_NS] = constants[HEAD_START_NS]
        _linear(parts[HEAD], parameters, 2.0 * parameters, work[LOGITS_ROWS], peak, reach, mfu, overlap)
    if work[SAMPLED_ROWS]:
        # float32 logits are written once and passed over.
        size = constants[LOGITS_BYTES] * work[SAMPLED_ROWS]
        parts[SAMPLING, MEMORY_NS] = NS * size * constants[SAMPLER_PASSES] / bandwidth
        parts[SAMPLING, FLOOR_NS] = constants[SAMPLER_NS]
        parts[SAMPLING, BYTES] = size
        _close(parts[SAMPLING], 0.0)
    if constants[LINK]:
        # Two all-reduces a layer; a ring moves 2 (n - 1) / n of each message over every link.
        reach = constants[LINK] * share(curves[REDUCE_SHARE], constants[REDUCE_LINK_BYTES] * rows)
        parts[ALL_REDUCE, MEMORY_NS] = NS * (constants[ROW_REDUCE_BYTES] * rows) / reach
        parts[ALL_REDUCE, FLOOR_NS] = constants[REDUCE_FLOOR_NS]
        _close(parts[ALL_REDUCE], 0.0)


@jit(sources=(__file__,))
def _drafter(part, steps, rows, context, constants, curves):
    """Price forwards of a draft model one after the other: each reads its weights, and KV of all context."""
    parameters = constants[DRAFT_PARAMETERS]
    part[FLOPS] = steps * 2.0 * parameters * rows
    part[BYTES] = steps * (2.0 * parameters + constants[DRAFT_KV_BYTES] * context)
    part[COMPUTE_NS] = NS * part[FLOPS] / (constants[BF16_PEAK] * share(curves[GEMM_MFU], float(rows)))
    part[MEMORY_NS] = NS * part[BYTES] / (constants[BANDWIDTH] * constants[GEMM_MBU])
    part[START_NS] = steps * constants[DRAFT_START_NS]
    _close(part, constants[GEMM_OVERLAP])


@jit(sources=(__file__,))
def _measured(table, at, amount):
    """Read a measured curve at `at`: linear between its points, in proportion above the last; give its end too."""
    count = int(table[at])
    first, times = at + 1, at + 1 + count
    end = times + count
    if amount <= 0:
        return 0.0, end
    if amount <= table[first]:
        return table[times], end
    last = count - 1
    if amount >= table[first + last]:
        return table[times + last] * amount / table[first + last], end
    right = 1
    while table[first + right] < amount:
        right += 1
    low, high = table[first + right - 1], table[first + right]
    weight = (amount - low) / (high - low)
    return table[times + right - 1] * (1.0 - weight) + table[times + right] * weight, end


@jit(sources=(__file__,))
def _between(table, at, amount, places, weights, axis):
    """Find the two points of an axis around an amount; above the last one weights extrapolate."""
    count = int(table[at])
    right = 1
    while right < count - 1 and table[at + 1 + right] < amount:
        right += 1
    low, high = table[at + right], table[at + 1 + right]
    places[axis] = right - 1
    weights[axis] = (amount - low) / (high - low)
    return at + 1 + count


@jit(sources=(__file__,))
def _measured_attention(table, at, chunk, before, decoding, context):
    """Interpolate one layer's attention: a prefill chunk behind some context, and decoding requests with theirs."""
    places, weights, sizes = np.zeros(4, np.int64), np.zeros(4), np.zeros(4, np.int64)
    amounts = np.array([chunk, before, decoding, context], np.float64)
    for axis in range(4):
        sizes[axis] = int(table[at])
        at = _between(table, at, amounts[axis], places, weights, axis)
    total = 0.0
    for corner in range(16):
        share_of, index = 1.0, 0
        for axis in range(4):
            upper = (corner >> axis) & 1
            share_of *= weights[axis] if upper else 1.0 - weights[axis]
            index = index * sizes[axis] + places[axis] + upper
        total += share_of * table[at + index]
    return max(0.0, total)


@jit(sources=(__file__,))
def _tabled(work, constants, parts):
    """Replace the times of a launch's parts by measured ones; its operations and bytes stay."""
    parts[BLOCKS, PART_NS], at = _measured(constants, CONSTANTS, work[ROWS])
    parts[HEAD, PART_NS], at = _measured(constants, at, work[LOGITS_ROWS])
    parts[SAMPLING, PART_NS], at = _measured(constants, at, work[SAMPLED_ROWS])
    parts[ACTIVATIONS, PART_NS] = 0.0  # dense times hold them
    tokens, pairs = float(work[PREFILL_ROWS]), float(work[PREFILL_PAIRS])
    rows = work[ROWS] - work[PREFILL_ROWS]
    # A block of several rows reads its context once: it counts as one request that decodes.
    requests = min(rows, work[REQUESTS])
    context = (work[CONTEXT_TOKENS] - work[PREFILL_CONTEXT]) / max(1, requests) if rows > 0 else 0.0
    layers = constants[LAYERS]
    parts[PREFILL_ATTENTION, PART_NS] = 0.0
    if tokens * tokens <= 2.0 * pairs or tokens == 0:
        before = pairs / tokens - tokens / 2.0 if tokens else 0.0
        both = _measured_attention(constants, at, tokens, before, requests if rows > 0 else 0, context)
        parts[ATTENTION, PART_NS] = layers * both
        return
    # Several prompts: as many equal ones as have these pairs.
    size = 2.0 * pairs / tokens
    one = _measured_attention(constants, at, size, 0.0, 0.0, 0.0)
    parts[PREFILL_ATTENTION, PART_NS] = layers * one * tokens / size
    if rows > 0:
        parts[ATTENTION, PART_NS] = layers * _measured_attention(constants, at, 0.0, 0.0, requests, context)


@jit(sources=(__file__,))
def ceiling_ns(constants, parts):
    """Give the bare roofline of priced parts: all operations at the peak or all compulsory bytes at full bandwidth."""
    seconds = size = 0.0
    for index in range(len(parts)):
        peak = constants[BLOCKS_PEAK] if index <= EXPERTS else constants[BF16_PEAK]
        seconds += parts[index, FLOPS] / peak
        size += parts[index, BYTES]
    return NS * max(seconds, size / constants[BANDWIDTH])


@jit(sources=(__file__,))
def device_ns(work, constants, curves, parts):
    """Give the accelerator's time for one launch, in whole nanoseconds, and fill in its parts."""
    if work[ROWS] <= 0:
        return _drafting_ns(work, constants, curves, parts)
    _price_rows(work, constants, curves, parts)
    return _launch_ns(work, constants, curves, parts)


@jit(sources=(__file__,))
def device_ns_again(work, constants, curves, parts, known):
    """Give what `device_ns` does, where `parts` may hold those of an earlier launch with the counts of rows `known`.

    From launch to launch it is mostly the context that moves; `known` is int64 [ROW_COUNTS], 0 at first.
    """
    rows, logits, adapter, sampled = work[ROWS], work[LOGITS_ROWS], work[ADAPTER_ROWS], work[SAMPLED_ROWS]
    if rows <= 0:
        known[0] = 0
        return _drafting_ns(work, constants, curves, parts)
    if known[0] != rows or known[1] != logits or known[2] != adapter or known[3] != sampled:
        known[0], known[1], known[2], known[3] = rows, logits, adapter, sampled
        _price_rows(work, constants, curves, parts)
    return _launch_ns(work, constants, curves, parts)


@jit(sources=(__file__,))
def _launch_ns(work, constants, curves, parts):
    """Give the time of a launch whose parts by counts of rows are filled in."""
    _price_context(work, constants, curves, parts)
    if len(constants) > CONSTANTS:
        _tabled(work, constants, parts)
    ns = constants[REPLAY_NS]
    for index in range(len(parts)):
        ns += parts[index, PART_NS]
    return math.ceil(max(ns, ceiling_ns(constants, parts)))


@jit(sources=(__file__,))
def _drafting_ns(work, constants, curves, parts):
    """Give the time of a launch that runs draft models alone, if any; its start holds the replay of a graph."""
    for part in range(len(parts)):
        for column in range(COLUMNS):
            parts[part, column] = 0.0
    _price_drafting(parts[DRAFTER], work, constants, curves)
    return math.ceil(max(parts[DRAFTER, PART_NS], ceiling_ns(constants, parts)))


@jit(sources=(__file__,))
def use(parts, usage, bound_ns):
    """Add a launch to what a run has used: time by part and by the bound that binds it, operations and bytes.

    `bound_ns` int64 [FLOPS] takes the time by bound alone.
    """
    for index in range(len(parts)):
        part = parts[index]
        bound = MEMORY_NS if part[MEMORY_NS] >= part[COMPUTE_NS] else COMPUTE_NS
        bound = FLOOR_NS if part[FLOOR_NS] + part[START_NS] > part[bound] else bound
        usage[index, bound] += part[PART_NS]
        bound_ns[bound] += int(part[PART_NS])
        usage[index, FLOPS] += part[FLOPS]
        usage[index, BYTES] += part[BYTES]


@jit(sources=(__file__,))
def step_ns(device, sequences, constants):
    """Give the time of an engine step whose launches take `device` ns: the host's share hides behind them or adds."""
    if device == 0:
        return 0
    host = int(constants[HOST_STEP_NS]) + int(constants[HOST_SEQUENCE_NS]) * sequences
    return max(device, host) if constants[OVERLAPPED] else device + host
