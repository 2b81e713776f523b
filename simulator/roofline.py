"""The formula behind `cost.py`: what one launch takes, over plain arrays, so that compiled runs read the same one.

A launch is a row of counts (`Work`, in the order of its fields), a cost model a row of constants and a few curves.
Each part of a launch is a row of `parts`: its three bounds in nanoseconds, and its operations and compulsory bytes.
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
REQUESTS, ROWS, LOGITS_ROWS, ADAPTER_ROWS, CONTEXT_TOKENS, ATTENTION_PAIRS, SAMPLED_ROWS = range(7)
# Parts of a launch: rows of `parts`, in the order in which a forward runs them; those that are absent stay 0.
PARTS: Final = ("blocks", "attention", "activations", "adapter", "head", "sampling", "all-reduce")
BLOCKS, ATTENTION, ACTIVATIONS, ADAPTER, HEAD, SAMPLING, ALL_REDUCE = range(len(PARTS))
# What is known of a part: columns of `parts`.
COMPUTE_NS, MEMORY_NS, FLOOR_NS, FLOPS, BYTES = range(5)
# Efficiency curves: places in `curves`, each with its amounts, its shares, and whether it keeps its time below.
BLOCKS_MFU, GEMM_MFU, GEMM_MBU, DECODE_MBU, PREFILL_MFU = range(5)
AMOUNTS, SHARES, LATENCY = range(3)
# What a cost model knows before any launch: places in `constants`.
(BANDWIDTH, BLOCKS_PEAK, BF16_PEAK, BLOCKS_PARAMETERS, BLOCKS_BYTES, ADAPTER_PARAMETERS, HEAD_PARAMETERS, PAIR_FLOPS,
 LAYER_KV_BYTES, KV_REFERENCE_BYTES, LAYERS, ATTENTION_FLOOR_NS, ROW_ACTIVATION_BYTES, ACTIVATION_FLOOR_NS,
 LOGITS_BYTES, SAMPLER_PASSES, SAMPLER_NS, ROW_REDUCE_BYTES, LINK, REDUCE_FLOOR_NS, REPLAY_NS, HOST_STEP_NS,
 HOST_SEQUENCE_NS, OVERLAPPED) = range(24)  # fmt: skip
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
def _linear(part, parameters, size, rows, peak, bandwidth, mfu, mbu):
    """Price linear layers: their `size` bytes of weights are read once, every row multiplies them."""
    part[FLOPS] = 2.0 * parameters * rows
    part[BYTES] = size
    part[COMPUTE_NS] = NS * part[FLOPS] / (peak * share(mfu, float(rows)))
    part[MEMORY_NS] = NS * size / (bandwidth * share(mbu, float(rows)))


@jit(sources=(__file__,))
def _attention(part, work, constants, curves):
    """Price attention: each request's KV is read once, each pair costs two products a head."""
    layers = constants[LAYERS]
    part[FLOPS] = constants[PAIR_FLOPS] * work[ATTENTION_PAIRS] * layers
    moved = (work[CONTEXT_TOKENS] + work[ROWS]) * constants[LAYER_KV_BYTES]
    decode = share(curves[DECODE_MBU], moved / constants[KV_REFERENCE_BYTES])
    # A causal prefill of n tokens has n^2 / 2 pairs.
    prefill = share(curves[PREFILL_MFU], math.sqrt(2.0 * work[ATTENTION_PAIRS]))
    part[COMPUTE_NS] = NS * part[FLOPS] / (constants[BF16_PEAK] * prefill)
    part[BYTES] = moved * layers
    part[MEMORY_NS] = NS * part[BYTES] / (constants[BANDWIDTH] * decode)
    part[FLOOR_NS] = constants[ATTENTION_FLOOR_NS]


@jit(sources=(__file__,))
def price(work, constants, curves, parts):
    """Fill in the parts of a launch that has rows; `parts` is float64 [PARTS, 5]."""
    bandwidth, peak = constants[BANDWIDTH], constants[BF16_PEAK]
    mbu, rows = curves[GEMM_MBU], work[ROWS]
    parts[:] = 0.0
    parameters = constants[BLOCKS_PARAMETERS]
    mfu = curves[BLOCKS_MFU]
    _linear(
        parts[BLOCKS], parameters, constants[BLOCKS_BYTES], rows, constants[BLOCKS_PEAK], bandwidth, mfu, mbu
    )
    _attention(parts[ATTENTION], work, constants, curves)
    # The kernels between the linear layers: norms, rotary embedding, activation.
    parts[ACTIVATIONS, MEMORY_NS] = NS * (constants[ROW_ACTIVATION_BYTES] * rows) / bandwidth
    parts[ACTIVATIONS, FLOOR_NS] = constants[ACTIVATION_FLOOR_NS]
    mfu = curves[GEMM_MFU]
    if constants[ADAPTER_PARAMETERS] and work[ADAPTER_ROWS]:
        parameters = constants[ADAPTER_PARAMETERS]
        _linear(parts[ADAPTER], parameters, 2.0 * parameters, work[ADAPTER_ROWS], peak, bandwidth, mfu, mbu)
    if work[LOGITS_ROWS]:
        parameters = constants[HEAD_PARAMETERS]
        _linear(parts[HEAD], parameters, 2.0 * parameters, work[LOGITS_ROWS], peak, bandwidth, mfu, mbu)
    if work[SAMPLED_ROWS]:
        # float32 logits are written once and passed over.
        size = constants[LOGITS_BYTES] * work[SAMPLED_ROWS]
        parts[SAMPLING, MEMORY_NS] = NS * size * constants[SAMPLER_PASSES] / bandwidth
        parts[SAMPLING, FLOOR_NS] = constants[SAMPLER_NS]
        parts[SAMPLING, BYTES] = size
    # Two ring all-reduces a layer; without a neighbour both constants are 0.
    parts[ALL_REDUCE, MEMORY_NS] = NS * (constants[ROW_REDUCE_BYTES] * rows) / constants[LINK]
    parts[ALL_REDUCE, FLOOR_NS] = constants[REDUCE_FLOOR_NS]


@jit(sources=(__file__,))
def ceiling_ns(constants, parts):
    """Give the bare roofline of priced parts: all operations at the peak or all compulsory bytes at full bandwidth."""
    seconds = size = 0.0
    for index in range(len(parts)):
        peak = constants[BLOCKS_PEAK] if index == BLOCKS else constants[BF16_PEAK]
        seconds += parts[index, FLOPS] / peak
        size += parts[index, BYTES]
    return NS * max(seconds, size / constants[BANDWIDTH])


@jit(sources=(__file__,))
def device_ns(work, constants, curves, parts):
    """Give the accelerator's time for one launch, in whole nanoseconds, and fill in its parts."""
    if work[ROWS] <= 0:
        return 0
    price(work, constants, curves, parts)
    ns = constants[REPLAY_NS]
    for index in range(len(parts)):
        ns += max(parts[index, COMPUTE_NS], parts[index, MEMORY_NS], parts[index, FLOOR_NS])
    return math.ceil(max(ns, ceiling_ns(constants, parts)))


@jit(sources=(__file__,))
def use(parts, usage):
    """Add a launch to what a run has used: time by part and by the bound that binds it, operations and bytes."""
    for index in range(len(parts)):
        part = parts[index]
        bound = MEMORY_NS if part[MEMORY_NS] >= part[COMPUTE_NS] else COMPUTE_NS
        bound = FLOOR_NS if part[FLOOR_NS] > part[bound] else bound
        usage[index, bound] += part[bound]
        usage[index, FLOPS] += part[FLOPS]
        usage[index, BYTES] += part[BYTES]


@jit(sources=(__file__,))
def step_ns(device, sequences, constants):
    """Give the time of an engine step whose launches take `device` ns: the host's share hides behind them or adds."""
    if device == 0:
        return 0
    host = int(constants[HOST_STEP_NS]) + int(constants[HOST_SEQUENCE_NS]) * sequences
    return max(device, host) if constants[OVERLAPPED] else device + host
