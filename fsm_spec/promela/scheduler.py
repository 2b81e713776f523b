"""Translate the scheduler itself, `decision.decide`, to Promela: the part of Python that numba compiles.

The exported model then has the decisions of the checker, the simulator and the executor, and cannot fall behind them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any, Final

from fsm_spec import decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_OPERATORS: Final[dict[type[ast.operator], str]] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def tree_of(function: Callable[..., Any]) -> ast.FunctionDef:
    """Parse a function's source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


class Translation:
    """Translate one function to statements.

    `lengths` say how `len` of an argument is written, `tuples` the columns of a list of tuples. Names of integers in
    `decision` become their values; names of the function get a prefix.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        prefix: str,
        lengths: Mapping[str, str],
        tuples: Mapping[str, Sequence[str]],
    ) -> None:
        self.tree = tree_of(function)
        self.prefix = prefix
        self.lengths = lengths
        self.tuples = tuples

    @property
    def variables(self) -> list[str]:
        """List the scalars that the function assigns, arguments included, as they are written."""
        assigned = [
            node.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        return [self.prefix + name for name in dict.fromkeys(assigned)]

    def statements(self) -> list[str]:
        """Give the body; what the function returns is left in the variable `result` (with the prefix)."""
        return list(self._body(self.tree.body))

    def _body(self, body: Sequence[ast.stmt]) -> Iterator[str]:
        for place, node in enumerate(body):
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue):
                # Spin allows no jump inside a d_step: what a `continue` skips goes to the other branch.
                yield from self._branches(node.test, node.body[:-1], body[place + 1 :])
                return
            yield from self._statement(node)

    def _branches(self, test: ast.expr, then: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> Iterator[str]:
        yield f"if :: {self._expression(test)} ->"
        yield from _indented(self._body(then) if then else ["skip"])
        yield ":: else ->"
        yield from _indented(self._body(other) if other else ["skip"])
        yield "fi;"

    def _statement(self, node: ast.stmt) -> Iterator[str]:  # noqa: C901 - a case each kind of statement
        match node:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Assign(
                targets=[ast.Tuple(elts=names)], value=ast.Subscript(value=ast.Name(id=name), slice=at)
            ):
                for target, column in zip(names, self.tuples[name], strict=True):
                    yield f"{self._expression(target)} = {column}[{self._expression(at)}];"
            case ast.Assign(targets=[target], value=value):
                yield f"{self._expression(target)} = {self._expression(value)};"
            case ast.AugAssign(target=target, op=op, value=value):
                left = self._expression(target)
                yield f"{left} = {left} {_OPERATORS[type(op)]} ({self._expression(value)});"
            case ast.If(test=test, body=body, orelse=other):
                yield from self._branches(test, body, other)
            case ast.For(target=target, iter=ast.Call(args=[stop]), body=body):
                index = self._expression(target)
                yield f"{index} = 0;"
                yield from self._loop(f"{index} < {self._expression(stop)}", body, f"{index}++;")
            case ast.While(test=test, body=body):
                yield from self._loop(self._expression(test), body, "")
            case ast.Break():
                yield "break;"
            case ast.Return(value=value) if value is not None:
                yield f"{self.prefix}result = {self._expression(value)};"
            case _:  # pragma: no cover - the scheduler is written in this part of Python
                raise TypeError(ast.unparse(node))

    def _loop(self, test: str, body: Sequence[ast.stmt], step: str) -> Iterator[str]:
        yield f"do :: {test} ->"
        yield from _indented(self._body(body))
        if step:
            yield f"  {step}"
        yield ":: else -> break"
        yield "od;"

    def _expression(self, node: ast.expr) -> str:  # noqa: C901, PLR0911 - a case each kind of expression
        match node:
            case ast.Constant(value=int(value)):
                return str(int(value))
            case ast.Name(id=name):
                known = getattr(decision, name, None)
                return str(known) if isinstance(known, int) else self.prefix + name
            case ast.Subscript(value=ast.Name(id=name), slice=at):
                return f"{self.prefix}{name}[{self._expression(at)}]"
            case ast.BinOp(left=left, op=op, right=right):
                return f"({self._expression(left)} {_OPERATORS[type(op)]} {self._expression(right)})"
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return f"({self._expression(left)} {_COMPARISONS[type(op)]} {self._expression(right)})"
            case ast.BoolOp(op=op, values=values):
                word = " && " if isinstance(op, ast.And) else " || "
                return f"({word.join(self._expression(value) for value in values)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(!{self._expression(operand)})"
            case ast.IfExp(test=test, body=body, orelse=other):
                return f"({self._expression(test)} -> {self._expression(body)} : {self._expression(other)})"
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
                return self.lengths[name]
            case ast.Call(func=ast.Name(id=name), args=args):
                return f"{name.upper()}({', '.join(self._expression(arg) for arg in args)})"
            case _:  # pragma: no cover - the scheduler is written in this part of Python
                raise TypeError(ast.unparse(node))


def macro_of(function: Callable[..., Any]) -> str:
    """Translate a function of plain values without loops to a macro."""
    translation = Translation(function, "", {}, {})
    arguments = ", ".join(arg.arg for arg in translation.tree.args.args)
    return (
        f"#define {function.__name__.upper()}({arguments}) {_value(translation, translation.tree.body, {})}"
    )


def _value(translation: Translation, body: Sequence[ast.stmt], known: dict[str, ast.expr]) -> str:
    """Give the value that statements return; assigned names are put in place."""
    node, *rest = body
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return _value(translation, rest, {**known, name: _replaced(value, known)})
        case ast.If(test=test, body=then):
            first, second = (_value(translation, branch, known) for branch in (then, rest))
            return f"({translation._expression(_replaced(test, known))} -> {first} : {second})"  # noqa: SLF001
        case ast.Return(value=value) if value is not None:
            return translation._expression(_replaced(value, known))  # noqa: SLF001
        case _:  # a docstring
            return _value(translation, rest, known)


def _replaced(node: ast.expr, known: Mapping[str, ast.expr]) -> ast.expr:
    class Names(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return known.get(name.id, name)

    replaced: ast.expr = Names().visit(node)
    return replaced


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}"
