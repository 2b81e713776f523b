"""The step of a table on a device: one custom op an event, on a GPU one Triton kernel where torch would launch dozens.

The kernel's text is written from the lines of `fsm_spec/step.py`'s emitter, so it means what they mean; what differs
between languages of arrays (names of functions, division of negative numbers) is rewritten in the parsed lines.
Floor of a kernel: 4 bytes read a request and column or argument that the event reads, 4 written a result.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fsm_spec.executor.device.scope import namespace
from fsm_spec.step import Body, choose, constants, rows_body, step, step_body
from fsm_spec.table import Table

# Requests a program; a batch has a few hundred at most.
BLOCK = 128
ROW, TRANSITION, EMITTED = "=row", "=transition", "=emitted"


class Stepped(NamedTuple):
    """Hold what an event did, int32 [n] each: columns (those that do not change are the tensors given), and more."""

    columns: dict[str, Tensor]
    transition: Tensor
    emitted: Tensor


class EventCode:
    """Hold the code of one event: to choose its rows, or to apply it."""

    def __init__(self, table: Table, event: str, body: Body) -> None:
        self.table = table
        self.event = event
        self.reads = body.reads
        self.results = tuple(body.values)
        self._body = body
        self.key = f"{table.digest} {event} {'choose' if ROW in body.values else 'step'}"
        _KNOWN.setdefault(self.key, self)

    @classmethod
    def choosing(cls, table: Table, event: str) -> Self:
        """Give the code that names the row of an event."""
        return cls(table, event, rows_body(table, event))

    @classmethod
    def applying(cls, table: Table, event: str) -> Self:
        """Give the code that applies an event."""
        return cls(table, event, step_body(table, event))

    def run(self, columns: Mapping[str, Tensor], args: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the results by name for int32 [n] columns and arguments."""
        values = {**columns, **args}
        found = _table_step(self.key, [values[name] for name in self.reads])
        return {name: found[place] for place, name in enumerate(self.results)}

    def run_torch(self, inputs: list[Tensor]) -> Tensor:
        """Compute the results by the step's own torch form -> int32 [results, n]."""
        values = dict(zip(self.reads, inputs, strict=True))
        columns = {name: values.get(name, inputs[0]) for name in self.table.column_names}
        space = namespace(self.table, inputs[0].device)
        if self.results == (ROW,):
            return choose(self.table, columns, self.event, values, space).unsqueeze(0)  # type: ignore[no-any-return]
        done = step(self.table, columns, self.event, values, space)
        found = {**done.columns, TRANSITION: done.transition, EMITTED: done.emitted}
        return torch.stack([found[name] for name in self.results])

    @cached_property
    def text(self) -> str:
        """Give the kernel's text."""
        lines = [
            "@triton.jit",
            f"def table_step({', '.join(f'p_{name}' for name in self.reads)}, results, n, BLOCK: tl.constexpr):",
            "    each = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "    inside = each < n",
            *(f"    v_{name} = tl.load(p_{name} + each, mask=inside, other=0)" for name in self.reads),
            *(f"    {line}" for line in _in_triton("\n".join(self._body.lines)).splitlines()),
        ]
        for place, name in enumerate(self.results):
            value = _in_triton(self._body.values[name])
            lines.append(f"    tl.store(results + {place} * n + each, {value}, mask=inside)")
        return "\n".join([*lines, ""])

    @cached_property
    def kernel(self) -> Any:  # noqa: ANN401 -- Triton has no types
        """Compile the text; Triton reads it through `linecache`, by a name that tells tables apart."""
        import triton  # noqa: PLC0415 -- a CPU needs no Triton
        import triton.language as tl  # noqa: PLC0415

        from fsm_spec.kernels.triton import integers  # noqa: PLC0415

        name = f"<table_step {self.key}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        scope = {
            "__name__": name,
            "triton": triton,
            "tl": tl,
            "floor_divide": integers.floor_divide,
            "floor_modulo": integers.floor_modulo,
        }
        exec(compile(self.text, name, "exec"), scope)  # noqa: S102 -- built from parsed expressions, never from a spec's words
        return scope["table_step"]

    def run_kernel(self, inputs: list[Tensor]) -> Tensor:
        """Compute the results by the kernel -> int32 [results, n]."""
        n = len(inputs[0])
        results = torch.empty((len(self.results), n), dtype=torch.int32, device=inputs[0].device)
        programs = -(-n // BLOCK)
        self.kernel[(programs,)](*(one.contiguous() for one in inputs), results, n, BLOCK=BLOCK)
        return results


# All code by its key, which is what an op of torch can take.
_KNOWN: dict[str, EventCode] = {}


@torch.library.custom_op("fsm_spec::table_step", mutates_args=())
def _table_step(key: str, inputs: list[Tensor]) -> Tensor:
    """Compute the results of an event's code, int32 [results, n]."""
    return _KNOWN[key].run_torch(inputs)


@_table_step.register_kernel("cuda")
def _(key: str, inputs: list[Tensor]) -> Tensor:
    """Compute them by the Triton kernel."""
    return _KNOWN[key].run_kernel(inputs)


@_table_step.register_fake
def _(key: str, inputs: list[Tensor]) -> Tensor:
    """Give shape and type."""
    return torch.empty_like(inputs[0].expand(len(_KNOWN[key].results), -1))


class TableStep:
    """Choose the rows of one event and apply it, by custom ops."""

    def __init__(self, table: Table, event: str) -> None:
        self.rows = EventCode.choosing(table, event)
        self.step = EventCode.applying(table, event)

    def choose(self, columns: Mapping[str, Tensor], args: Mapping[str, Tensor]) -> Tensor:
        """Give the row that each request takes by its guards alone, int32 [n]."""
        return self.rows.run(columns, args)[ROW]

    def apply(self, columns: Mapping[str, Tensor], args: Mapping[str, Tensor]) -> Stepped:
        """Apply the event to int32 [n] columns and arguments, `stop` among them where it emits."""
        found = self.step.run(columns, args)
        transition, emitted = found.pop(TRANSITION), found.pop(EMITTED)
        return Stepped({**columns, **found}, transition, emitted)


class _Rewrite(ast.NodeTransformer):
    """Turn an expression of the emitter into Triton's words."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Put constants in."""
        return ast.Constant(self.values[node.id]) if node.id in self.values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Take functions of arrays from Triton's language."""
        assert isinstance(node.func, ast.Name)
        node.args = [self.visit(part) for part in node.args]
        node.func = ast.Attribute(ast.Name("tl"), node.func.id)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Round down in divisions."""
        left, right = self.visit(node.left), self.visit(node.right)
        by_name = {ast.FloorDiv: "floor_divide", ast.Mod: "floor_modulo"}.get(type(node.op))
        if by_name is not None:
            return ast.Call(ast.Name(by_name), [left, right], [])
        return ast.BinOp(left, node.op, right)


def _in_triton(text: str) -> str:
    """Rewrite lines of the emitter."""
    return ast.unparse(_Rewrite(constants(text)).visit(ast.parse(text)))
