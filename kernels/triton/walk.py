"""The `walk` operator as Triton kernels: a draw or a law a node, then one program that walks a request's tree.

Floor: the logits of live nodes read once (nodes * V * their width in bytes). Laws of nodes are not in memory: what is
left of a law after rejected children is its kept tokens without theirs, and only the sums of their blocks change.
Torch reading: `kernels/fixed/walk.py`; `law.py` says where rounding may differ.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import NO_NODE, Tree
from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.triton.law import block_at, keep_laws, mass_of, stored_law, token_at, weights
from fsm_spec.kernels.triton.randomness import uniform
from fsm_spec.kernels.triton.sampling import sample
from fsm_spec.kernels.triton.scores import BLOCK as BLOCK_OF_ROWS
from fsm_spec.kernels.triton.scores import WARPS, Statistics, temperature_of

# Purposes of draws, as `kernels/randomness.py` numbers them.
TARGET, ACCEPT, RESIDUAL = tl.constexpr(1), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def follow_picks(picks, tokens, parents, count, path, next_tokens, nodes, deepest, NODES: tl.constexpr):
    """Go from the root of one tree to the first child that carries the node's own draw, until there is none."""
    request = tl.program_id(0)
    each = tl.arange(0, NODES)
    live = each < tl.load(count + request)
    base = request * nodes
    parent = tl.load(parents + base + each, mask=each < nodes, other=-1)
    token = tl.load(tokens + base + each, mask=each < nodes, other=-1)
    node = 0
    walking = 1
    tl.store(path + request * (deepest + 1), 0)
    for depth in range(1, deepest + 1):
        pick = tl.load(picks + base + node)
        child = tl.min(tl.where(live & (parent == node) & (token == pick), each, NODES), 0)
        walking = walking & (child < NODES).to(tl.int32)
        node = tl.where(walking != 0, child, node)
        tl.store(path + request * (deepest + 1) + depth, child, mask=walking != 0)
    tl.store(next_tokens + request, tl.load(picks + base + node))


@triton.jit
def left_of_block(
    row,
    start,
    base,
    tokens,
    parents,
    node,
    tried,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return a block of a node's law without the tokens of its children up to `tried` -> (ids, mass)."""
    ids, mass = weights(row, start, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL)
    for child in range(1, tried + 1):
        gone = tl.load(parents + base + child) == node
        mass = tl.where(gone & (ids == tl.load(tokens + base + child)), 0.0, mass)
    return ids, mass


@triton.jit
def try_children(
    logits,
    temperature,
    seeds,
    positions,
    tokens,
    parents,
    depths,
    count,
    reals,
    keys,
    masses,
    path,
    next_tokens,
    stride,
    nodes,
    width,
    exclude,
    deepest,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Try the children of one walk's node in order, each against what is left of the node's law.

    Children stand behind their parents, so one pass over the nodes is the whole walk; the children of the node before
    the one that is tried have all been rejected.
    """
    request = tl.program_id(0)
    base = request * nodes
    each, blocks = tl.arange(0, NODES), tl.arange(0, BLOCKS)
    live = tl.load(count + request).to(tl.int32)
    parent = tl.load(parents + base + each, mask=each < nodes, other=-1)
    token = tl.load(tokens + base + each, mask=each < nodes, other=-1)
    heat = temperature_of(temperature, request, REAL)
    seed = tl.load(seeds + request)
    tl.store(path + request * (deepest + 1), 0)
    node = 0
    cut = 0
    top, kth, least, low, limit, sums = stored_law(reals, keys, masses, base, BLOCKS, BITS)
    for child in range(1, tl.minimum(live, nodes)):
        if tl.load(parents + base + child) == node:
            row = logits + (base + node).to(tl.int64) * stride
            name = tl.load(tokens + base + child).to(tl.int32)
            mass = mass_of(row, name, width, exclude, heat, top, kth, least, low, limit, BITS, REAL)
            twice = tl.max(((parent == node) & (each < child) & (each > 0) & (token == name)).to(tl.int32), 0)
            mass = tl.where(twice != 0, 0.0, mass).to(tl.float64)
            left = tl.sum(sums, 0)
            chance = tl.minimum(mass / tl.where(left > 0.0, left, 1.0), 1.0)
            # Of several draws at one position, the child is the salt, as `kernels/randomness.py:salted` does it.
            where = tl.load(positions + base + node) + ((tl.zeros([], tl.int64) + child) << 32)
            if chance > uniform(seed, where, ACCEPT) * (chance + (1.0 - chance)):
                node = child
                cut = 0
                top, kth, least, low, limit, sums = stored_law(
                    reals, keys, masses, base + child, BLOCKS, BITS
                )
                depth = tl.load(depths + base + child)
                tl.store(
                    path + request * (deepest + 1) + depth, child, mask=(depth >= 0) & (depth <= deepest)
                )
            else:
                cut = 1
                block = name // BLOCK
                ids, rest = left_of_block(
                    row, block * BLOCK, base, tokens, parents, node, child, width, exclude,
                    heat, top, kth, least, low, limit, BLOCK, BITS, REAL,
                )  # fmt: skip
                sums = tl.where(blocks == block, tl.sum(rest.to(tl.float64), 0), sums)
    row = logits + (base + node).to(tl.int64) * stride
    purpose = tl.where(cut != 0, RESIDUAL, TARGET)
    share = uniform(seed, tl.load(positions + base + node), purpose)
    block, target = block_at(sums, share, BLOCKS)
    # Without a rejected child there is nothing to leave out; else the node has no child that was not tried.
    tried = tl.where(cut != 0, tl.minimum(live, nodes) - 1, 0)
    ids, rest = left_of_block(
        row, block * BLOCK, base, tokens, parents, node, tried, width, exclude,
        heat, top, kth, least, low, limit, BLOCK, BITS, REAL,
    )  # fmt: skip
    tl.store(next_tokens + request, token_at(ids, rest, target, width).to(tl.int64))


def walk(
    rule: str,
    logits: Tensor,
    tree: Tree,
    sampling: SamplingColumns,
    positions: Tensor,
    deepest: int,
    exclude: int | None,
    block: int = BLOCK_OF_ROWS,
) -> tuple[Tensor, Tensor]:
    """Walk as the forms of `kernels/fixed/walk.py` do -> (path int64 [n, deepest + 1], next int64 [n])."""
    n, v, width = logits.shape
    tokens, parents, depths = (one.contiguous() for one in (tree.tokens, tree.parents, tree.depths))
    path = torch.full((n, deepest + 1), NO_NODE, dtype=torch.int64, device=logits.device)
    found = torch.empty(n, dtype=torch.int64, device=logits.device)
    nodes = triton.next_power_of_2(v)
    positions = positions.contiguous()
    if rule == "match":
        picks, _ = sample(
            logits, sampling, positions, Purpose.TARGET, "law", exclude=exclude, want_law=False, block=block
        )
        follow_picks[(n,)](picks, tokens, parents, tree.count, path, found, v, deepest, NODES=nodes)
        return path, found
    flat = logits.reshape(n * v, width)
    statistics = Statistics.of(flat, sampling.temperature, v, exclude, block)
    laws = statistics.rooms()
    keep_laws[(n * v,)](
        flat, statistics.maxima, statistics.places, statistics.sums, statistics.room(), *sampling[:4],
        tree.count, *laws, statistics.stride, v, width, statistics.exclude, statistics.blocks,
        RAW=statistics.raw, **statistics.constants,
    )  # fmt: skip
    try_children[(n,)](
        flat, sampling.temperature, sampling.seeds, positions, tokens, parents, depths, tree.count, *laws,
        path, found, statistics.stride, v, width, statistics.exclude, deepest,
        NODES=nodes, **statistics.constants,
    )  # fmt: skip
    return path, found


_IDS = "*i64:16"
_KEPT = "*fp32:16 *i64:16 *fp64:16"
_SHAPE = {"BLOCK": 2048, "BLOCKS": 128, "BITS": 16, "REAL": tl.float32}
SPECIALISATIONS = (
    Specialisation(
        "64 nodes", follow_picks, f"{_IDS} {_IDS} {_IDS} {_IDS} {_IDS} {_IDS} i32:16 i32", {"NODES": 64}
    ),
    Specialisation(
        "bf16",
        keep_laws,
        f"*bf16:16 *fp32:16 *i32:16 *fp64:16 *i32:16 *fp64:16 *i64:16 *fp64:16 *fp64:16 {_IDS} {_KEPT} "
        "i32:16 i32 i32:16 i32 i32",
        {**_SHAPE, "RAW": tl.bfloat16},
        warps=WARPS,
    ),
    Specialisation(
        "bf16, 64 nodes",
        try_children,
        f"*bf16:16 *fp64:16 {_IDS} {_IDS} {_IDS} {_IDS} {_IDS} {_IDS} {_KEPT} {_IDS} {_IDS} i32:16 i32 i32:16 i32 i32",
        {"NODES": 64, **_SHAPE},
        warps=WARPS,
    ),
)
