"""Single edits of a spec: every way to change one place of its text so that it is still one that a person could write.

A number, a comparison, a name, a word of a closed set is another; an entry is left out, said twice, or changes places
with its neighbour; two transitions trade a part. What only describes a spec (`about`, `check`) is left alone, and so
are its parameters and what it claims.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import yaml

from fsm_spec.language import source

Path = tuple[str | int, ...]
Edit = tuple[str, dict[str, Any]]
Names = tuple[set[str], set[str]]

_LEFT_ALONE: Final = {
    "spec",
    "about",
    "source",
    "check",
    "params",
    "lossless",
    "require",
    "name",
    "op",
    "why",
    "models",
}
# Words of closed sets, by the key that they stand under.
_WORDS: Final[Mapping[str, Sequence[Any]]] = {
    "kv": ["keep", "provisional", "scratch", "open"],
    "logits": ["none", "shifted", "own"],
    "weights": ["base", "adapter"],
    "attention": ["causal", "bidirectional"],
    "contract": ["pending", "full"],
    "phase": ["draft", "verify"],
    "type": ["token", "law"],
}
_RULES: Final = {
    "accept": ["greedy", "match", "rejection", "topk", "threshold", "always"],
    "walk": ["match", "residual"],
    "unmask": ["threshold", "schedule", "sequential", "entropy"],
    "grow": ["best", "product"],
    "sample": ["law", "argmax", "argmax_of_law"],
}
_SWAPPED: Final = {"==": ["!=", "<=", ">="], "<": ["<=", ">"], ">": [">=", "<"], "<=": ["<"], ">=": [">"]}


def dumped(data: Mapping[str, Any]) -> str:
    """Write a spec's data as a text."""
    return yaml.safe_dump(dict(data), sort_keys=False, width=10**6)


def edits(text: str) -> Iterator[Edit]:
    """Yield every single edit of a spec in words, with the data after it."""
    data = source.compose(text, "<text>").data
    names = _names(data)
    for path, value in list(_nodes(data, ())):
        if any(part in _LEFT_ALONE for part in path):
            continue
        for told, changed in _changes(data, path, value, names):
            after = copy.deepcopy(data)
            holder: Any = after
            for part in path[:-1]:
                holder = holder[part]
            if changed is _GONE:
                del holder[path[-1]]
            else:
                holder[path[-1]] = changed
            yield f"{'.'.join(map(str, path))}: {told}", after
    yield from _traded(data)


def drawn_edits(text: str, count: int, seed: str) -> Iterator[tuple[str, str]]:
    """Draw so many edits of a spec; yields each in words, with the text after it."""
    whole = dict(edits(text))
    for told in random.Random(seed).sample(sorted(whole), min(count, len(whole))):
        yield told, dumped(whole[told])


_GONE: Final = object()


def _nodes(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:  # noqa: ANN401 -- what YAML holds
    if path:
        yield path, data
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield from _nodes(value, (*path, key))


def _names(data: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Name what stands for a number, and what stands for tokens and what else a carry holds."""
    outs: set[str] = set()
    for forward in data["forwards"].values():
        for op in forward.get("ops", ()):
            out = op.get("out", ())
            outs |= {out} if isinstance(out, str) else set(out)
    columns = set(data.get("columns", ()))
    counted = " ".join(
        f"{row.get('when', '')} {row.get('keep', '')} {[row.get('set', {}).get(name) for name in columns]}"
        for row in data["transitions"]
    )
    counts = {name for name in outs if re.search(rf"\b{name}\b", counted)}
    numbers = {"kv", "emitted", "prompt", "limit"} | set(data.get("params", ())) | columns | counts
    return numbers, {"pending"} | set(data.get("carry", ())) | (outs - counts)


def _changes(
    data: Mapping[str, Any],
    path: Path,
    value: Any,  # noqa: ANN401 -- what YAML holds
    names: Names,
) -> Iterator[tuple[str, Any]]:
    key = path[-1]
    if len(path) > 1 and key not in ("start", "forwards", "rows", "ops", "out", "from"):
        yield "left out", _GONE
    if isinstance(value, list):
        for place in range(len(value) - 1):
            yield (
                f"{place} and {place + 1} change places",
                [*value[:place], value[place + 1], value[place], *value[place + 2 :]],
            )
        for place, entry in enumerate(value):
            if key == "emit" or (path[0] == "transitions" and key in data.get("carry", ())):
                yield f"{entry!r} twice", [*value[:place], entry, entry, *value[place + 1 :]]
    words = _words(data, path)
    yield from ((f"{value!r} -> {word!r}", word) for word in words if word != value)
    number = not {"emit", "source", "features", "keep_rows", "when"} & set(path) and not (
        ("set" in path and path[-1] not in data.get("columns", ())) or ("init" in path and path[0] == "carry")
    )
    if not words and not isinstance(value, (list, dict, bool)) and key != "out":
        yield from ((f"{value!r} -> {text!r}", text) for text in _texts(str(value), names, number=number))


def _words(data: Mapping[str, Any], path: Path) -> Sequence[Any]:
    """List the words that could stand at a place of a closed set."""
    key = path[-1]
    if key == "rule" and len(path) > 1:
        op = data
        for part in path[:-1]:
            op = op[part]  # type: ignore[index]
        return _RULES.get(op["op"], ())
    if path[0] == "transitions" and key in ("to", "from"):
        return [*data["states"], "end"]
    if path[0] == "states" and key == "forward":
        return list(data["forwards"])
    if key in ("rows", "drafts", "q", "tree", "picks") and path[0] == "forwards" and "ops" in path:
        rows = data["forwards"][path[1]].get("rows", ())
        return [row["name"] for row in rows] if key == "rows" else list(data.get("carry", ()))
    return _WORDS.get(str(key), ()) if path[0] != "columns" else ()


def _texts(text: str, names: Names, *, number: bool) -> Iterator[str]:
    """Yield texts of an expression or a piece in which one thing is another."""
    for found in re.finditer(r"[0-9]+", text):
        for other in (int(found[0]) + 1, int(found[0]) - 1):
            yield f"{text[: found.start()]}{other}{text[found.end() :]}"
    for found in re.finditer(r"==|<=|>=|<|>", text):
        for comparison in _SWAPPED[found[0]]:
            yield f"{text[: found.start()]}{comparison}{text[found.end() :]}"
    for found in re.finditer(r"[+-]", text):
        yield f"{text[: found.start()]}{'-' if found[0] == '+' else '+'}{text[found.end() :]}"
    for found in re.finditer(r"[A-Za-z_]+[0-9]?", text):
        for name in sorted(next((alike for alike in names if found[0] in alike), ())):
            if name != found[0]:
                yield f"{text[: found.start()]}{name}{text[found.end() :]}"
    if number and not text.isdigit():
        yield f"{text} + 1"
        yield f"{text} - 1"


def _traded(data: Mapping[str, Any]) -> Iterator[Edit]:
    """Yield what two transitions can trade: guards, targets, emitted runs, kept rows."""
    for key in ("when", "to", "emit", "keep", "set"):
        having = [place for place, row in enumerate(data["transitions"]) if key in row]
        for one, other in pairwise(having):
            if data["transitions"][one][key] != data["transitions"][other][key]:
                after = copy.deepcopy(dict(data))
                rows = after["transitions"]
                rows[one][key], rows[other][key] = rows[other][key], rows[one][key]
                yield f"transitions {one} and {other} trade {key}", after
