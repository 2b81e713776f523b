"""Rows of draft models: what each kind of model reads, and what no draft model may do (rules 5 and 12).

A draft model has a KV cache of its own, whose committed slots follow the target's; that they do is decided for
concrete parameters in `draft_cache.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fsm_spec.language.findings import Path
from fsm_spec.language.operations import Accept, Capture, Operation, Sample, Unmask, Walk
from fsm_spec.language.scope import Scope, Violation, segment_path
from fsm_spec.language.spec import Forward, Segment

# Kinds whose rows read a hidden state beside the token: they lack one row behind a prefill, as its token is the next.
BESIDE: Final = ("feature_head", "token_heads")
# Kinds that read the target's hidden states at all.
READERS: Final = ("context_head", *BESIDE)


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge draft models, and the rows and operators of their forwards."""
    spec = scope.spec
    for name, model in spec.models.items():
        yield from scope.numbers(model.behind, ("models", name, "behind"), scope.place())
    for name, forward in spec.forwards.items():
        path: Path = ("forwards", name)
        kind = None
        if forward.model is not None:
            scope.used.add(("models", forward.model))
            if forward.model not in spec.models:
                yield from scope.unknown(forward.model, "the model", spec.models, (*path, "model"))
                continue
            kind = spec.models[forward.model].kind
            if forward.attention in ("groups", "block-causal"):
                message = f"a draft model runs no {forward.attention} rows"
                yield (*path, "attention"), f"{message}; write causal, bidirectional or tree"
        for index, segment in enumerate(forward.segments):
            yield from _segment(scope, kind, segment, segment_path(name, forward, index))
        for index, op in enumerate(forward.ops):
            yield from _operator(scope, kind, forward, op, (*path, "ops", index))


def _segment(scope: Scope, kind: str | None, segment: Segment, path: Path) -> Iterator[Violation]:
    """Hold a segment to what the model that runs it reads."""
    name = segment.name
    if segment.features is not None:
        place = scope.place()
        yield from scope.piece(segment.features, (*path, "features"), scope.carries, "", place, "feature")
        if kind not in BESIDE:
            reader = "the target" if kind is None else f"a {kind}"
            yield (*path, "features"), f"{reader} reads no hidden state beside a token; remove features"
    elif kind in BESIDE:
        yield path, f'a row of {kind} reads a hidden state beside its token; add the key "features"'
    if not segment.query and kind != "context_head":
        yield (*path, "query"), f"only a context_head has rows without queries; remove query from {name}"
    elif not segment.query and segment.logits != "none":
        yield (*path, "logits"), f"{name} has no query and gives no logits; write logits: none"
    yield from _fate(kind, segment, path)


def _fate(kind: str | None, segment: Segment, path: Path) -> Iterator[Violation]:
    """Hold a segment's fate and weights to the model that runs it."""
    name = segment.name
    if kind is None:
        if segment.kv == "open":
            yield (*path, "kv"), f"open is for rows of draft models; write kv: scratch on {name}"
        return
    if segment.weights != "base":
        yield (*path, "weights"), f"the adapter is the target's; remove weights from {name}"
    if segment.kv == "provisional":
        yield (*path, "kv"), f"nothing judges the rows of a draft model; write kv: open on {name}"
    elif segment.kv == "keep" and kind == "context_head" and segment.query:
        yield (*path, "kv"), f"a context_head keeps rows without queries only; write kv: scratch on {name}"


def _operator(
    scope: Scope, kind: str | None, forward: Forward, op: Operation, path: Path
) -> Iterator[Violation]:
    """Hold an operator to the model whose rows it reads."""
    if isinstance(op, Capture):
        readers = [model.kind for model in scope.spec.models.values() if model.kind in READERS]
        if kind is None and not readers:
            yield path, "no draft model of this spec reads hidden states of the target; remove capture"
        elif kind is not None and kind not in BESIDE:
            yield path, f"a {kind} reads no hidden state of its own; remove capture"
    elif isinstance(op, Sample) and op.head is not None and kind != "context_head":
        yield (*path, "head"), "the head over the token before is a context_head's; remove head"
    elif isinstance(op, Sample) and op.head is None and not isinstance(op.out, str) and len(op.out) > 2:
        yield (*path, "out"), "only a head gives the chance that drafts survive; write head: markov"
    elif isinstance(op, (Accept, Walk, Unmask)) and kind is not None:
        yield path, f"{forward.model} drafts, and the target judges; move {op.op} to a forward of the target"
