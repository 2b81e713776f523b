"""Small domains of names, walked to decide what interval arithmetic cannot: guards, bounds and contracts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from fsm_spec.language.expression import evaluate, interval, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsm_spec.language.expression import Bounds, Expr
    from fsm_spec.table import ArgPlan

# prompt, limit, emitted and kv have no bound of their own; intervals use this, walks use the first values.
UNBOUNDED: Final = 2**24
_WALKED: Final = 6


def column_bounds(maxima: Mapping[str, int], states: int) -> dict[str, Bounds]:
    """Bound every column a guard may read, built-in ones included."""
    built_in = {"state": (0, states - 1), "prompt": (1, UNBOUNDED), "limit": (1, UNBOUNDED)}
    return (
        built_in
        | {"emitted": (0, UNBOUNDED), "kv": (0, UNBOUNDED)}
        | {name: (0, top) for name, top in maxima.items()}
    )


def arg_bounds(args: Sequence[ArgPlan], columns: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Bound event arguments over all values of the columns."""
    return {arg.name: (interval(arg.low, columns)[0], interval(arg.high, columns)[1]) for arg in args}


def assignments(
    expressions: Iterable[Expr], columns: Mapping[str, Bounds], args: Sequence[ArgPlan], most: int
) -> Iterator[dict[str, int]]:
    """Yield at most `most` values for the columns and arguments that the expressions read.

    Large ranges are thinned to their edges.
    """
    wanted = {name for expr in expressions for name in names(expr)}
    used = [arg for arg in args if arg.name in wanted]
    wanted |= {name for arg in used for edge in (arg.low, arg.high) for name in names(edge)}
    read = [name for name in columns if name in wanted]
    yield from islice(_walk(read, columns, used, {}, most), most)


def _walk(
    read: list[str], columns: Mapping[str, Bounds], args: list[ArgPlan], values: dict[str, int], most: int
) -> Iterator[dict[str, int]]:
    if read:
        width = max(3, int(most ** (1 / (len(read) + len(args)))))
        for value in _thinned(columns[read[0]], width):
            yield from _walk(read[1:], columns, args, {**values, read[0]: value}, most)
    elif args:
        low, high = evaluate(args[0].low, values), evaluate(args[0].high, values)
        width = max(3, int(most ** (1 / len(args))))
        for value in _thinned((low, high), width):
            yield from _walk([], columns, args[1:], {**values, args[0].name: value}, most)
    else:
        yield values


def _thinned(bounds: Bounds, width: int) -> list[int]:
    low, high = bounds
    high = low + _WALKED if high >= UNBOUNDED // 2 else high
    if high - low < width:
        return list(range(low, high + 1))
    half = width // 2
    return [*range(low, low + half), *range(high - half + 1, high + 1)]
