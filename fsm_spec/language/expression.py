"""Integer and boolean expressions of specs: parse, print, evaluate, bound and rewrite.

The grammar is small on purpose (no calls but min, max and ceil, no attribute, no float), so that one reading serves
the scalar oracle, the array form of `step.py`, and interval bounds at compile time. Nothing here runs Python of a spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_CHARACTERS: Final = 1_000
MAX_DEPTH: Final = 24
MAX_NODES: Final = 200
# Columns are int32; a literal beyond it can only be a mistake.
INT32_MAX: Final = 2**31 - 1

COMPARISONS: Final = ("==", "!=", "<=", ">=", "<", ">")
_FUNCTIONS: Final = ("min", "max", "ceil")
_WORDS: Final = frozenset({"and", "or", "not", "true", "false", *_FUNCTIONS})
_HINTS: Final = {"/": "; division is // (floor) or ceil(a, b)", "=": "; equality is =="}
_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*)|(==|!=|<=|>=|//|[-+*%()<>,]))")


class ExpressionError(ValueError):
    """Report a text that is no expression; `offset` counts characters from its start."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Const:
    """Hold an integer, or a truth value as 0 or 1 when `boolean`."""

    value: int
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """Refer to a parameter, column, event argument or operator result."""

    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """Apply an operator to arguments; `op` is its spelling in a spec, `neg` for the unary minus."""

    op: str
    args: tuple[Expr, ...]


type_names: Final = {"int": "an integer", "bool": "a condition"}
Expr = Const | Name | Op
TRUE: Final = Const(1, boolean=True)
ZERO: Final = Const(0)
Bounds = tuple[int, int]


def is_boolean(expr: Expr) -> bool:
    """Tell whether the expression is a condition rather than an integer."""
    if isinstance(expr, Const):
        return expr.boolean
    return isinstance(expr, Op) and (expr.op in COMPARISONS or expr.op in ("and", "or", "not"))


def _shown(token: str) -> str:
    return repr(token) if token else "the end"


class _Parser:
    """Parse by precedence climbing over a token list; depth and size are bounded while parsing."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        self.at = 0
        self.nodes = 0
        self._scan(text)

    def _scan(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ExpressionError(f"the expression has {len(text)} characters; {MAX_CHARACTERS} at most", 0)
        end = len(text.rstrip())
        position = 0
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                offset = position + len(text[position:]) - len(text[position:].lstrip())
                hint = _HINTS.get(text[offset], "")
                raise ExpressionError(f"{text[offset]!r} is no part of an expression{hint}", offset)
            kind = ("int", "name", "op")[(match.lastindex or 1) - 1]
            self.tokens.append((kind, match.group(match.lastindex or 1), match.start(match.lastindex or 1)))
            position = match.end()
        self.tokens.append(("end", "", end))

    def _next(self) -> tuple[str, str, int]:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def _accept(self, *texts: str) -> str | None:
        kind, text, _ = self.tokens[self.at]
        if kind != "int" and text in texts:
            self.at += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            _, found, offset = self.tokens[self.at]
            raise ExpressionError(f"expected {text!r}, found {_shown(found)}", offset)

    def _node(self, op: str, *args: Expr) -> Op:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ExpressionError(f"the expression has more than {MAX_NODES} operators", 0)
        return Op(op, args)

    def parse(self) -> Expr:
        expr = self._or(0)
        kind, text, offset = self.tokens[self.at]
        if kind != "end":
            raise ExpressionError(f"unexpected {text!r}", offset)
        return expr

    def _or(self, depth: int) -> Expr:
        left = self._and(depth)
        while self._accept("or"):
            left = self._node("or", self._condition(left), self._condition(self._and(depth)))
        return left

    def _and(self, depth: int) -> Expr:
        left = self._not(depth)
        while self._accept("and"):
            left = self._node("and", self._condition(left), self._condition(self._not(depth)))
        return left

    def _not(self, depth: int) -> Expr:
        self._bound(depth)
        if self._accept("not"):
            return self._node("not", self._condition(self._not(depth + 1)))
        return self._comparison(depth)

    def _comparison(self, depth: int) -> Expr:
        left = self._sum(depth)
        op = self._accept(*COMPARISONS)
        if op is None:
            return left
        right = self._sum(depth)
        if self._accept(*COMPARISONS):
            raise ExpressionError(
                "comparisons do not chain; join two with 'and'", self.tokens[self.at - 1][2]
            )
        return self._node(op, self._integer(left), self._integer(right))

    def _sum(self, depth: int) -> Expr:
        left = self._product(depth)
        while op := self._accept("+", "-"):
            left = self._node(op, self._integer(left), self._integer(self._product(depth)))
        return left

    def _product(self, depth: int) -> Expr:
        left = self._unary(depth)
        while op := self._accept("*", "//", "%"):
            left = self._node(op, self._integer(left), self._integer(self._unary(depth)))
        return left

    def _unary(self, depth: int) -> Expr:
        self._bound(depth)
        if self._accept("-"):
            return self._node("neg", self._integer(self._unary(depth + 1)))
        return self._atom(depth)

    def _atom(self, depth: int) -> Expr:
        kind, text, offset = self._next()
        if kind == "int":
            if len(text) > len(str(INT32_MAX)) or int(text) > INT32_MAX:
                raise ExpressionError(f"{text[:20]} does not fit in 32 bits", offset)
            return Const(int(text))
        if text == "(":
            inner = self._or(depth + 1)
            self._expect(")")
            return inner
        if text in ("true", "false"):
            return Const(int(text == "true"), boolean=True)
        if text in _FUNCTIONS:
            return self._call(text, depth)
        if kind == "name" and text not in _WORDS:
            return Name(text)
        raise ExpressionError(f"expected a number or a name, found {_shown(text)}", offset)

    def _call(self, function: str, depth: int) -> Expr:
        self._expect("(")
        args = [self._integer(self._sum(depth + 1))]
        while self._accept(","):
            args.append(self._integer(self._sum(depth + 1)))
        self._expect(")")
        if len(args) < 2 or (function == "ceil" and len(args) != 2):
            wants = "two arguments" if function == "ceil" else "at least two arguments"
            raise ExpressionError(f"{function} takes {wants}, not {len(args)}", self.tokens[self.at - 1][2])
        if function == "ceil":
            return self._node("ceil", *args)
        folded = args[0]
        for arg in args[1:]:
            folded = self._node(function, folded, arg)
        return folded

    def _bound(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ExpressionError(
                f"the expression is nested more than {MAX_DEPTH} deep", self.tokens[self.at][2]
            )

    def _integer(self, expr: Expr) -> Expr:
        if is_boolean(expr):
            raise ExpressionError("a condition stands where a number is needed", self.tokens[self.at - 1][2])
        return expr

    def _condition(self, expr: Expr) -> Expr:
        if not is_boolean(expr):
            raise ExpressionError(
                f"{to_text(expr)!r} is a number where a condition is needed", self.tokens[self.at - 1][2]
            )
        return expr


def parse(text: str | int | bool, kind: str = "int") -> Expr:  # noqa: FBT001 - YAML gives true and false as they are
    """Parse an expression of the kind `int` or `bool`; raises ExpressionError with the offset of the fault."""
    if isinstance(text, bool):
        expr: Expr = Const(int(text), boolean=True)
    elif isinstance(text, int):
        if abs(text) > INT32_MAX:
            raise ExpressionError(f"{str(text)[:20]} does not fit in 32 bits", 0)
        expr = Const(text)
    else:
        expr = _Parser(text).parse()
    if is_boolean(expr) != (kind == "bool"):
        raise ExpressionError(f"expected {type_names[kind]}, found {to_text(expr)!r}", 0)
    return expr


_PRECEDENCE: Final = (
    {"or": 1, "and": 2, "not": 3}
    | dict.fromkeys(COMPARISONS, 4)
    | {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6, "neg": 7}
)


def to_text(expr: Expr) -> str:
    """Print an expression so that parsing it again gives the same tree."""
    return _print(expr, 0)


def _print(expr: Expr, outer: int) -> str:
    if isinstance(expr, Const):
        if expr.boolean:
            return "true" if expr.value else "false"
        return f"({expr.value})" if expr.value < 0 and outer > 0 else str(expr.value)
    if isinstance(expr, Name):
        return expr.name
    if expr.op in _FUNCTIONS:
        return f"{expr.op}({', '.join(_print(arg, 0) for arg in _folded(expr))})"
    own = _PRECEDENCE[expr.op]
    if expr.op in ("not", "neg"):
        body = f"{'not ' if expr.op == 'not' else '-'}{_print(expr.args[0], own)}"
    else:
        # Left-associative, and comparisons take no comparison on either side.
        left = _print(expr.args[0], own + (own == 4))
        body = f"{left} {expr.op} {_print(expr.args[1], own + 1)}"
    return f"({body})" if own < outer else body


def _folded(expr: Op) -> Iterator[Expr]:
    """Yield the arguments of a call; parsing folds min and max of several from the left."""
    first, *rest = expr.args
    if expr.op != "ceil" and isinstance(first, Op) and first.op == expr.op:
        yield from _folded(first)
    else:
        yield first
    yield from rest


def names(expr: Expr) -> Iterator[str]:
    """Yield every name the expression reads, with repetitions."""
    if isinstance(expr, Name):
        yield expr.name
    elif isinstance(expr, Op):
        for arg in expr.args:
            yield from names(arg)


def divisors(expr: Expr) -> Iterator[Expr]:
    """Yield the right side of every //, % and ceil."""
    if isinstance(expr, Op):
        if expr.op in ("//", "%", "ceil"):
            yield expr.args[1]
        for arg in expr.args:
            yield from divisors(arg)


_SCALAR: Final[dict[str, Callable[..., int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": lambda a: not a,
}


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """Evaluate with Python integers; conditions give 0 or 1. Raises KeyError for a name without a value."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Name):
        return values[expr.name]
    return int(_SCALAR[expr.op](*(evaluate(arg, values) for arg in expr.args)))


def substitute(expr: Expr, values: Mapping[str, Expr | int]) -> Expr:
    """Replace names and fold what becomes constant; neutral elements disappear."""
    if isinstance(expr, Const):
        return expr
    if isinstance(expr, Name):
        value = values.get(expr.name, expr)
        return Const(value) if isinstance(value, int) else value
    args = tuple(substitute(arg, values) for arg in expr.args)
    return _simplify(expr.op, args)


def _simplify(op: str, args: tuple[Expr, ...]) -> Expr:
    if all(isinstance(arg, Const) for arg in args) and not (op in ("//", "%", "ceil") and args[1].value == 0):  # type: ignore[union-attr]
        value = int(_SCALAR[op](*(arg.value for arg in args)))  # type: ignore[union-attr]
        return Const(value, boolean=op in COMPARISONS or op in ("and", "or", "not"))
    if len(args) == 2:
        left, right = args
        if op == "+" and isinstance(left, Const):  # constants stand right, so that they meet
            left, right = right, left
        if op in ("+", "-") and right == Const(0):
            return left
        if op == "*" and Const(1) in args:
            return right if left == Const(1) else left
        if op in ("+", "-") and isinstance(right, Const) and isinstance(left, Op) and left.op in ("+", "-"):
            inner = left.args[1]
            if isinstance(inner, Const):  # (x + 1) - 1 and its kin: one constant, so that texts compare
                total = (inner.value if left.op == "+" else -inner.value) + (
                    right.value if op == "+" else -right.value
                )
                return add(left.args[0], Const(total))
        if op == "and" and Const(1, boolean=True) in args:
            return right if left == Const(1, boolean=True) else left
        if op == "or" and Const(0, boolean=True) in args:
            return right if left == Const(0, boolean=True) else left
        args = left, right
    return Op(op, args)


def add(left: Expr, right: Expr) -> Expr:
    """Add two expressions, folding constants."""
    if isinstance(left, Const) and not isinstance(right, Const):
        left, right = right, left
    if isinstance(right, Const) and right.value < 0:
        return _simplify("-", (left, Const(-right.value)))
    return _simplify("+", (left, right))


def subtract(left: Expr, right: Expr) -> Expr:
    """Subtract two expressions, folding constants."""
    if isinstance(right, Const):
        return add(left, Const(-right.value))
    return Const(0) if left == right else _simplify("-", (left, right))


def both(left: Expr, right: Expr) -> Expr:
    """Join two conditions by `and`, folding constants."""
    return _simplify("and", (left, right))


def total(parts: Iterator[Expr] | list[Expr] | tuple[Expr, ...]) -> Expr:
    """Sum expressions, folding constants."""
    result: Expr = Const(0)
    for part in parts:
        result = add(result, part)
    return result


def interval(expr: Expr, bounds: Mapping[str, Bounds]) -> Bounds:
    """Bound an expression from bounds of its names (interval arithmetic: sound, not always tight)."""
    if isinstance(expr, Const):
        return expr.value, expr.value
    if isinstance(expr, Name):
        return bounds[expr.name]
    parts = [interval(arg, bounds) for arg in expr.args]
    if is_boolean(expr):
        return _decide(expr.op, parts)
    corners = [(a, b) for a in parts[0] for b in (parts[1] if len(parts) > 1 else (0,))]
    if expr.op == "neg":
        return -parts[0][1], -parts[0][0]
    if expr.op == "%":
        low, high = parts[0]
        divisor = parts[1][1]
        return (low, high) if low >= 0 and high < parts[1][0] else (0, divisor - 1)
    values = [int(_SCALAR[expr.op](a, b)) for a, b in corners]
    return min(values), max(values)


def _decide(op: str, parts: list[Bounds]) -> Bounds:
    """Bound a condition: (1, 1) is always true, (0, 0) never, (0, 1) unknown."""
    if op == "not":
        return 1 - parts[0][1], 1 - parts[0][0]
    (a_low, a_high), (b_low, b_high) = parts
    if op == "and":
        return min(a_low, b_low), min(a_high, b_high)
    if op == "or":
        return max(a_low, b_low), max(a_high, b_high)
    if op in (">", ">="):
        return _decide({">": "<", ">=": "<="}[op], [parts[1], parts[0]])
    if op == "<":
        return int(a_high < b_low), int(a_low < b_high)
    if op == "<=":
        return int(a_high <= b_low), int(a_low <= b_high)
    equal = (int(a_low == a_high == b_low == b_high), int(a_low <= b_high and b_low <= a_high))
    return equal if op == "==" else (1 - equal[1], 1 - equal[0])
