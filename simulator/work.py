"""Count from row plans what a launch does: rows, logits, gated rows, attention pairs, context, slots by kind.

Only live rows count: a row past its segment's count has no slot, no logits and no cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.language.expression import Const
from fsm_spec.launch import Chunk, Group, Launch
from fsm_spec.plan import KIND_OF_FATE, KINDS, ForwardPlan
from fsm_spec.simulator.cost import Work
from fsm_spec.step import evaluate
from fsm_spec.table import Table


class Block(NamedTuple):
    """Count the live rows of one request's block; `pairs` are those its own rows see of each other.

    Of a draft model's forward only `rows` are counted, as what it costs is its weights and its cache.
    """

    rows: int
    logits: int
    adapter: int
    sampled: int
    pairs: int
    keep: int
    provisional: int
    scratch: int


class InFlight(NamedTuple):
    """Count the slots above the committed ones that a launch writes, by the fate of their rows."""

    keep: int
    provisional: int
    scratch: int


class WorkCounter:
    """Count the work of launches of one table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._forwards = {
            state.name: _Forward(table, table.forwards[state.forward])
            for state in table.states
            if state.forward is not None
        }

    def has_rows(self, state: str) -> bool:
        """Tell whether the state's forward runs the target at all."""
        return self._forwards[state].plan.target_rows > 0

    def constant(self, state: str) -> Block | None:
        """Give the block of a state's forward where all its counts are constant."""
        return self._forwards[state].constant if state in self._forwards else None

    def count(self, launch: Launch) -> tuple[Work, InFlight]:
        """Count one launch; requests whose forward has no live row cost nothing."""
        requests = len(launch.chunks)
        rows, logits, context, pairs, keep = _chunks(launch.chunks)
        prefill = rows, context, pairs
        sampled, adapter, provisional, scratch = logits, 0, 0, 0
        drafting = [0, 0]
        for group in launch.groups:
            forward = self._forwards[group.state]
            for block, count, kv in forward.blocks(group):
                if not block.rows:
                    continue
                if forward.plan.model is not None:
                    drafting[0] += count * block.rows
                    drafting[1] += kv
                    continue
                requests += count
                rows += count * block.rows
                logits += count * block.logits
                adapter += count * block.adapter
                sampled += count * block.sampled
                context += kv
                pairs += kv * block.rows + count * block.pairs
                keep += count * block.keep
                provisional += count * block.provisional
                scratch += count * block.scratch
        work = Work(requests, rows, logits, adapter, context, pairs, sampled, *prefill, *drafting)
        return work, InFlight(keep, provisional, scratch)


def _chunks(chunks: tuple[Chunk, ...]) -> tuple[int, int, int, int, int]:
    """Sum rows, rows with logits, context, attention pairs and kept slots of prefill chunks, which are causal."""
    rows = logits = context = pairs = 0
    for chunk in chunks:
        rows += chunk.tokens
        logits += int(chunk.last)
        context += chunk.start
        pairs += chunk.tokens * chunk.start + chunk.tokens * (chunk.tokens + 1) // 2
    return rows, logits, context, pairs, rows


class _Forward:
    """Count the blocks of one forward: once where all counts are constant, else for each combination that occurs."""

    def __init__(self, table: Table, plan: ForwardPlan) -> None:
        self.plan = plan
        self._table = table
        self.constant: Block | None = None
        self._known: dict[int, Block] = {}
        self._radix = [segment.max_count + 1 for segment in plan.segments]
        if all(isinstance(segment.count, Const) for segment in plan.segments):
            self.constant = self._block([segment.max_count for segment in plan.segments])

    def blocks(self, group: Group) -> list[tuple[Block, int, int]]:
        """Give each distinct block with its number of requests and the sum of their committed slots."""
        kv = group.columns["kv"]
        if self.constant is not None:
            return [(self.constant, len(kv), int(kv.sum()))]
        code = self._codes(group)
        result = []
        for value in np.unique(code).tolist():
            here = code == value
            if value not in self._known:
                self._known[value] = self._block(self._decoded(value))
            result.append((self._known[value], int(here.sum()), int(kv[here].sum())))
        return result

    def _codes(self, group: Group) -> NDArray[np.int64]:
        """Write the counts of all segments as one number a request."""
        code = np.zeros(len(group.requests), np.int64)
        for segment, radix in zip(self.plan.segments, self._radix, strict=True):
            code = code * radix + evaluate(self._table, segment.count, group.columns, np)
        return code

    def _decoded(self, code: int) -> list[int]:
        counts = []
        for radix in reversed(self._radix):
            code, count = divmod(code, radix)
            counts.append(count)
        return counts[::-1]

    def _block(self, counts: list[int]) -> Block:
        if self.plan.model is not None:
            return Block(sum(counts), 0, 0, 0, 0, 0, 0, 0)
        live = np.zeros(self.plan.rows, np.bool_)
        kinds = dict.fromkeys(KINDS, 0)
        logits = adapter = 0
        by_name = {}
        for segment, count in zip(self.plan.segments, counts, strict=True):
            live[segment.first : segment.first + count] = True
            kinds[KIND_OF_FATE[segment.kv]] += count
            logits += count if segment.logits != "none" else 0
            adapter += count if segment.adapter else 0
            by_name[segment.name] = count
        sampled = sum(by_name[name] for operator in self.plan.operators for name in operator.rows)
        pairs = int(self.plan.mask[np.ix_(live, live)].sum())
        return Block(sum(counts), logits, adapter, sampled, pairs, *kinds.values())
