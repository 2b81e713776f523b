"""Compile the forwards of a spec: the rows of a request's block, and the operators that read their logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Name, Op, evaluate
from fsm_spec.language.linear import bounds, simplify
from fsm_spec.language.operations import Accept, Operation, Unmask
from fsm_spec.language.operators import key_of, outputs_of
from fsm_spec.language.piece import Piece
from fsm_spec.plan import ForwardPlan, OperatorPlan, OutputPlan, SegmentPlan
from fsm_spec.rules import draft_cache
from fsm_spec.rules.soundness import shown_params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.compile_values import Values
    from fsm_spec.language.findings import Path
    from fsm_spec.language.spec import Forward, Segment
    from fsm_spec.table import ModelPlan

# Rows of one request's block: beyond it a plan is a slip of the pen (the largest published layout has 1,056).
MAX_ROWS: Final = 4_096
# What operators read by name, and the integers they read.
_READ: Final = ("q", "block", "tree", "root", "path", "from_", "earlier")
_NUMBERS: Final = (
    "size",
    "min",
    "max",
    "top",
    "threshold",
    "bound",
    "left",
    "steps",
    "quota",
    "start",
    "depth",
)


class ForwardCompiler:
    """Compile forwards under the values of parameters."""

    def __init__(self, values: Values, models: Mapping[str, ModelPlan]) -> None:
        self.values = values
        self.models = models

    def compile(self, name: str, forward: Forward) -> ForwardPlan:
        """Give the plan of a forward; what is wrong with it goes to the faults of the values."""
        segments: list[SegmentPlan] = []
        width = expression.total(segment.count for segment in forward.segments)
        groups = forward.groups
        for group in range(1 if groups is None else self.values.value(groups.count)):
            before: Expr = Const(0)
            for index, segment in enumerate(forward.segments):
                path: Path = ("forwards", name, *forward.segments_key, index)
                base = self._base(forward)
                plan = self._segment(segment, base, before, sum(s.max_count for s in segments), path)
                if groups is not None:
                    plan = self._grouped(segment, plan, group, width)
                segments.append(plan)
                before = simplify(expression.add(before, plan.count))
        count = sum(segment.max_count for segment in segments)
        if count > MAX_ROWS:
            self.values.faults.append(
                (
                    ("forwards", name, *forward.segments_key),
                    f"the plan has {count:,} rows for {shown_params(self.values.params)}; {MAX_ROWS:,} at most",
                )
            )
        operators: list[OperatorPlan] = []
        for index, op in enumerate(forward.ops):
            operators.append(self._operator(op, forward, segments, operators))
            self._sizes(operators[-1], ("forwards", name, "ops", index))
        both_ways = groups is not None and groups.inside == "bidirectional"
        return ForwardPlan(
            name, forward.attention, tuple(segments), tuple(operators), both_ways, model=forward.model
        )

    def _sizes(self, operator: OperatorPlan, path: Path) -> None:
        """Hold numbers that count something to one at least, and a place to the first row at least."""
        for key in ("size", "min", "max", "top", "depth", "start"):
            value, least = operator.numbers.get(key), int(key != "start")
            found = least if value is None else bounds(value, self.values.bounds)[0]
            if found < least:
                message = (
                    f"{key} would be {found} for {shown_params(self.values.params)}; give {least} or more"
                )
                self.values.faults.append(((*path, key), message))

    def _base(self, forward: Forward) -> Expr:
        """Give the slot that the first row takes if nothing else is said: the one behind the committed ones."""
        if forward.model is None:
            return Name("kv")
        return draft_cache.committed(self.models[forward.model].behind)

    def _grouped(self, segment: Segment, plan: SegmentPlan, group: int, width: Expr) -> SegmentPlan:
        """Place the rows of one group: positions go on from its head, slots from row to row of the block.

        Of a list of sources group j reads token j, and the pending token is final, so that its KV is kept.
        """
        at = plan.at if segment.at is not None else simplify(expression.add(plan.at, Const(group)))
        start = simplify(Op("*", (self.values.sub(width), Const(group))))
        slot = plan.slot if segment.slot is not None else simplify(expression.add(plan.slot, start))
        source, kv = plan.source, plan.kv
        if isinstance(segment.source, list):
            offset = group
            for piece in (self.values.piece(each, {}) for each in segment.source):
                length = evaluate(piece.length(Const(1)), {})
                if offset < length:
                    start = expression.add(piece.start or Const(0), Const(offset))
                    source = Piece(piece.name, start, expression.add(start, Const(1)))
                    break
                offset -= length
        if kv == "provisional" and source.name == "pending":
            kv = "keep"
        name = f"{plan.name}[{group}]"
        return replace(plan, name=name, at=at, slot=slot, source=source, kv=kv, group=group)

    def _segment(self, segment: Segment, base: Expr, before: Expr, first: int, path: Path) -> SegmentPlan:
        count = self.values.sub(segment.count)
        low, high = bounds(count, self.values.bounds)
        if low < 0 or high >= 2**30:
            self.values.faults.append(
                (
                    (*path, "count"),
                    f"segment {segment.name} would have {low} to {high} rows; counts are 0 or more and bounded",
                )
            )
            high = max(0, min(high, MAX_ROWS))
        at = self.values.sub(segment.at) if segment.at is not None else simplify(expression.add(base, before))
        slot = self.values.sub(segment.slot) if segment.slot is not None else at
        source = segment.source[0] if isinstance(segment.source, list) else segment.source
        return SegmentPlan(
            segment.name,
            self.values.piece(source, {}),
            first,
            count,
            high,
            at,
            slot,
            segment.weights == "adapter",
            segment.logits,
            segment.kv,
            features=None if segment.features is None else self.values.piece(segment.features, {}),
            query=segment.query,
        )

    def _operator(
        self, op: Operation, forward: Forward, segments: list[SegmentPlan], before: list[OperatorPlan]
    ) -> OperatorPlan:
        listed = getattr(op, "rows", [])
        named = [listed] if isinstance(listed, str) else list(listed)
        rows = tuple(s.name for name in named for s in segments if s.name.partition("[")[0] == name)

        def count(names: str | list[str]) -> Expr:
            wanted = [names] if isinstance(names, str) else names
            for output in (output for known in before for output in known.outputs):
                if wanted == [output.name]:
                    return output.most
            return expression.total(s.count for s in segments if s.name.partition("[")[0] in wanted)

        outputs = tuple(
            OutputPlan(
                name, output.kind, self._bound(output.least(op, count)), self._bound(output.most(op, count))
            )
            for name, output in outputs_of(op)
        )
        # Rows of draft models, and those whose text is no token of the request, propose; all others speak for the
        # target.
        unsure = any(s.name in rows and (s.source.name in ("mask", "noise") or s.adapter) for s in segments)
        draft = unsure or isinstance(op, Unmask) or forward.model is not None
        drafts = self.values.piece(op.drafts, {}) if isinstance(op, Accept) else None
        return OperatorPlan(
            key_of(op),
            getattr(op, "rule", ""),
            outputs,
            rows,
            drafts,
            {key: value for key in _READ if (value := getattr(op, key, None)) is not None},
            {
                key: self.values.sub(value)
                for key in _NUMBERS
                if (value := getattr(op, key, None)) is not None
            },
            freeze=getattr(op, "freeze", None) is not None,
            draft=draft,
        )

    def _bound(self, value: Expr | None) -> Expr:
        assert value is not None, "the loader knows every segment"
        return self.values.sub(value)
