"""What a trace's records must look like, said in words where one does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fsm_spec.language.findings import nearest, quoted
from fsm_spec.language.sentence import describe
from fsm_spec.trace import STEP_FIELDS

Kind = tuple[str, Callable[[Any], bool]]


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integers(value: object) -> bool:
    return isinstance(value, list) and all(map(_integer, value))


def _lists(length: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and all(_integers(each) and len(each) == length for each in value)
    )


def _numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_integer, value.values()))


INTEGER: Final[Kind] = ("an integer", _integer)
INTEGERS: Final[Kind] = ("a list of integers", _integers)
PAIRS: Final[Kind] = ("a list of pairs of integers", _lists(2))
TRIPLES: Final[Kind] = ("a list of triples of integers", _lists(3))
NUMBERS: Final[Kind] = ("a mapping of names to integers", _numbers)
TEXT: Final[Kind] = ("a text", lambda value: isinstance(value, str))
MAPPING: Final[Kind] = ("a mapping", lambda value: isinstance(value, dict))

_HEADER: Final = {
    "trace": INTEGER,
    "source": TEXT,
    "digest": TEXT,
    "spec": TEXT,
    "params": NUMBERS,
    "policy": MAPPING,
    "pool": NUMBERS,
    "synthetic": MAPPING,
}
_ARRIVE: Final = {"round": INTEGER, "arrive": INTEGER, "prompt": INTEGER, "limit": INTEGER}
_PLAN: Final = {"round": INTEGER, "plan": MAPPING}
_DECISIONS: Final = {
    "preempt": INTEGERS,
    "pages": PAIRS,
    "run": INTEGERS,
    "chunks": PAIRS,
    "admit": TRIPLES,
    "blocked": INTEGERS,
    "tier": INTEGER,
    "hits": PAIRS,
    "shared": PAIRS,
}
# Said only where there are tiers, or pages that were found.
_MAY_LACK: Final = ("tier", "hits", "shared")
_STEP: Final = dict(
    zip(STEP_FIELDS, (INTEGER, INTEGER, TEXT, NUMBERS, INTEGER, NUMBERS, INTEGER), strict=True)
)


def fault_of_header(record: Mapping[str, Any]) -> str:
    """Say what is wrong with a header; nothing if it is one."""
    fault = _fault(record, _HEADER, optional=("synthetic",))
    pool = record.get("pool")
    if not fault and set(pool or ()) != {"pages", "page_size"}:
        return "the pool has the keys pages and page_size, and no others"
    return fault


def fault_of(record: Mapping[str, Any]) -> str:
    """Say what is wrong with an arrival, a plan or a step; nothing if it is one."""
    if "arrive" in record:
        return _fault(record, _ARRIVE)
    if "plan" in record:
        return _fault(record, _PLAN) or _fault(record["plan"], _DECISIONS, optional=_MAY_LACK)
    return _fault(record, _STEP)


def _fault(record: Mapping[str, Any], wanted: Mapping[str, Kind], optional: tuple[str, ...] = ()) -> str:
    for key in record:
        if key not in wanted:
            return f"unknown key {quoted(key)}{nearest(str(key), wanted)}"
    for key, (kind, fits) in wanted.items():
        if key not in record:
            if key in optional:
                continue
            return f"the key {quoted(key)} is missing"
        if not fits(record[key]):
            return f"{key} is {describe(record[key])}, where {kind} stands"
    return ""
