"""Fates of rows: whose KV may stay, in which order rows stand, and who judges provisional ones (rules 5 and 7).

A row's KV may stay only if the row is causal and runs base weights; mask and noise rows never leave KV behind.
The rule is about rows, not about phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fsm_spec.language.expression import Const
from fsm_spec.language.findings import Path
from fsm_spec.language.operations import Accept, Walk
from fsm_spec.language.piece import Piece
from fsm_spec.language.scope import PENDING, Scope, Violation, listed, segment_of, segment_path, sources
from fsm_spec.language.spec import Forward, Segment

_ORDER: Final = ("keep", "provisional", "open", "scratch")


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge the rows of every forward by themselves."""
    for name, forward in scope.spec.forwards.items():
        accept = judge(forward)
        reached = 0
        for index, segment in enumerate(forward.segments):
            path: Path = (*segment_path(name, forward, index), "kv")
            rank = _ORDER.index(segment.kv)
            if rank < reached and segment.slot is None:
                order = f"{segment.kv} rows stand behind {_ORDER[reached]} rows"
                yield path, f"{order}; put {segment.name} before them, or give its slot"
            reached = max(reached, rank)
            if segment.kv in ("keep", "provisional"):
                yield from _stays(scope, forward, segment, path)
            if (
                segment.kv == "provisional"
                and forward.model is None
                and not scope.lost(("forwards", name, "ops"))
            ):
                yield from _judged(scope, forward, segment, accept, path)
        if accept is not None and scope.claims:
            yield from _judges(forward, accept, ("forwards", name, "ops", forward.ops.index(accept), "rows"))


def judge(forward: Forward) -> Accept | Walk | None:
    """Give the forward's first operator that judges drafts."""
    return next((op for op in forward.ops if isinstance(op, (Accept, Walk))), None)


def judged(op: Accept | Walk) -> Piece:
    """Give the drafts that an operator judges."""
    return op.drafts if isinstance(op, Accept) else Piece(op.tree)


def _stays(scope: Scope, forward: Forward, segment: Segment, path: Path) -> Iterator[Violation]:
    """Rows that may stay are causal (or a whole block under a block contract), run base weights, and are no masks."""
    fate = f"{segment.name} says kv: {segment.kv}"
    blank = [piece.name for piece in sources(segment) if piece.name in ("mask", "noise")]
    whole = forward.attention == "block-causal" and scope.block is not None
    if blank:
        yield path, f"{fate}, but KV of {blank[0]} rows never persists; write kv: scratch"
    elif forward.attention == "block-causal" and not whole:
        yield path, f"{fate}, but block-causal rows may stay under a block contract only; write kv: scratch"
    elif forward.attention == "bidirectional" and segment.query:
        yield path, f"{fate}, but KV of a bidirectional pass is not the target's; write kv: scratch"
    elif segment.weights != "base":
        yield path, f"{fate}, but KV written with the adapter is not the target's; write kv: scratch"


def _judged(
    scope: Scope, forward: Forward, segment: Segment, accept: Accept | Walk | None, path: Path
) -> Iterator[Violation]:
    fate = f"{segment.name} is provisional"
    if accept is None:
        yield path, f"{fate}, but no accept operator of this forward judges it; add one, or write kv: scratch"
        return
    rows = listed(accept.rows)
    drafts = judged(accept)
    held = [piece for piece in sources(segment) if piece.name not in (PENDING, drafts.name)]
    if {segment.name, *(piece.name for piece in sources(segment)), drafts.name, *rows} & scope.doubt:
        return
    if segment.name not in rows:
        yield (
            path,
            f"{fate}, but {accept.op} judges only {', '.join(rows)}; add it to the rows of {accept.op}",
        )
    elif held:
        yield (
            path,
            f"{segment.name} holds {held[0]}, but {accept.op} judges {drafts}; name one carry in both",
        )
    elif segment is next(each for each in forward.segments if each.kv == "provisional"):
        yield from _in_order(segment, accept, path)


def _in_order(segment: Segment, accept: Accept | Walk, path: Path) -> Iterator[Violation]:
    """Hold rows to the very drafts that are judged, the first of them first; groups hold one final token before."""
    drafts, source = judged(accept), segment.source
    if isinstance(source, list):
        if not source or source[0].name != PENDING or source[1:] != [drafts]:
            message = f"{segment.name} reads {', '.join(map(str, source))}, but {accept.op} judges {drafts}"
            yield path, f"{message}; write source: [{PENDING}, {drafts}]"
    elif source.name == drafts.name and (source.start or Const(0)) != (drafts.start or Const(0)):
        message = f"{segment.name} reads {source}, but {accept.op} judges {drafts}"
        yield path, f"{message}; let both begin with the same draft"


def _judges(forward: Forward, accept: Accept | Walk, path: Path) -> Iterator[Violation]:
    for name in listed(accept.rows):
        segment = segment_of(forward, name)
        if segment is None:
            continue
        blank = any(piece.name in ("mask", "noise") for piece in sources(segment))
        if (
            blank
            or segment.logits == "own"
            or segment.weights != "base"
            or forward.attention not in ("causal", "groups", "tree")
        ):
            yield (
                path,
                f"{name} may not judge: the target judges by causal rows, base weights, logits: shifted",
            )
