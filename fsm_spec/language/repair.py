"""Drafts of a spec: validate data against the models, and mend or leave out what is wrong, so that rules see the rest.

A misspelt key, word or operator with a near right word is read as that word; any other faulty part is left out, with
what cannot stand without it. Thus one run finds the faults of the whole file, and no finding follows from another.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import ValidationError

from fsm_spec.language.findings import MAX_FINDINGS, MENDED, Path, closest, nearest, quoted, words
from fsm_spec.language.sentence import describe, keys_of, merged, sentence
from fsm_spec.language.source import Position, Source
from fsm_spec.language.spec import Spec

# Inside {} a comma ends the value, and the rest of an expression reads as keys without values.
_COMMA: Final = "; inside {} a comma ends a value, so quote an expression that holds one"
_EXPECTED: Final = re.compile(r"'([^']*)'")
Fault = tuple[Path, str, Position | None]


class Draft:
    """Hold a spec's data while it is validated; `faults` collects findings, `doubt` the words left out.

    Paths are those of the file; pydantic and the rules see the mended data, in which list items may have moved and
    keys may be renamed: `original` translates back.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.doubt = {word for text in source.dropped for word in words(text)}
        self.dropped: set[Path] = set()
        self.torn: set[Path] = set()
        self.renamed: dict[Path, str] = {}
        self.replaced: dict[Path, str] = {}
        self.kept: dict[Path, list[int]] = {}
        self.back: dict[tuple[Path, str], str] = {}
        self.mended: dict[str, Any] = {}
        self.unnamed = False
        for path in source.broken:
            self._drop(path)

    def validate(self) -> Spec | None:
        """Validate, mending between attempts; None where nothing of the file can stand."""
        before, mends = -1, len(self.dropped)
        while () not in self.dropped and len(self.faults) < MAX_FINDINGS and mends > before:
            before = mends
            self.kept = {}
            self.back = {(place[:-1], name): str(place[-1]) for place, name in self.renamed.items()}
            self.mended = self._view(self.source.data, ())
            if self.unnamed:
                self.mended["spec"] = "unnamed"
            try:
                return Spec.model_validate(self.mended)
            except ValidationError as error:
                placed = [
                    dict(item) | {"path": self._locate(item["loc"])}
                    for item in error.errors(include_url=False)
                ]
                # Unknown keys first: one that is read as a missing key answers for both.
                for item in sorted(merged(placed), key=lambda item: item["type"] != "extra_forbidden"):
                    if len(self.faults) < MAX_FINDINGS:
                        self._take(item)
            mends = len(self.dropped) + len(self.renamed) + len(self.replaced) + self.unnamed
        return None

    def original(self, path: Path) -> Path:
        """Translate a path of the mended data to the file's."""
        found: Path = ()
        for part in path:
            if isinstance(part, int):
                kept = self.kept.get(found, [])
                found = (*found, kept[part] if part < len(kept) else part)
            else:
                found = (*found, self.back.get((found, part), part))
        return found

    def hurt(self, path: Path) -> bool:
        """Tell whether a mapping or list of the mended data has lost a part."""
        place = self.original(path)
        return place in self.torn

    def at(self, path: Path) -> Any:
        """Give the file's value at a path of the file; None where there is none."""
        value: Any = self.source.data
        for part in path:
            if not _holds(value, part):
                return None
            value = value[part]
        return value

    def _view(self, value: Any, path: Path) -> Any:
        """Give the data without what is dropped, renamed and replaced."""
        if path in self.replaced:
            return self.replaced[path]
        if isinstance(value, dict):
            inside = [(key, (*path, key)) for key in value if (*path, key) not in self.dropped]
            return {self.renamed.get(place, key): self._view(value[key], place) for key, place in inside}
        if isinstance(value, list):
            self.kept[path] = [index for index in range(len(value)) if (*path, index) not in self.dropped]
            return [self._view(value[index], (*path, index)) for index in self.kept[path]]
        return value

    def _locate(self, loc: tuple[int | str, ...]) -> Path:
        """Translate pydantic's location to a path of the file: tags of union branches fall away."""
        value: Any = self.mended
        found: Path = ()
        tagged = False
        for part in loc:
            if isinstance(value, dict) and not tagged and value.get("op") == part:
                tagged = True
            elif _holds(value, part):
                value, found, tagged = value[part], (*found, part), False
        return self.original(found)

    def _drop(self, path: Path) -> None:
        """Leave out a part: its key, or the list item that is a mapping of its own."""
        while path and isinstance(path[-1], int) and not isinstance(self.at(path), dict):
            path = path[:-1]
        self.doubt.update(words(self.at(path)), words([part for part in path[-1:] if isinstance(part, str)]))
        self.dropped.add(path)
        self.torn.add(path[:-1])

    def _report(self, path: Path, message: str, place: Position | None = None) -> None:
        self.faults.append((path, message, place))

    # Kinds of errors --------------------------------------------------------------------------------------------

    def _take(self, error: dict[str, Any]) -> None:
        """Report one error and mend its cause."""
        path: Path = error["path"]
        if error["type"] == "missing":
            self._missing(path, error["loc"][-1])
        elif error["type"] == "extra_forbidden":
            self._unknown_key(path)
        elif error["type"] == "literal_error":
            self._word(path, error["input"], _EXPECTED.findall(error["ctx"]["expected"]), path)
        elif error["type"] == "union_tag_invalid":
            known = _EXPECTED.findall(error["ctx"]["expected_tags"])
            self._word((*path, "op"), error["ctx"]["tag"], known, path)
        else:
            if not self._follows(path):
                message, place = sentence(error, path, self.source)
                own_place = self.source.keys.get(path) if error["loc"][-1] == "[key]" else place
                self._report(path, message, own_place)
            self._drop(path)

    def _follows(self, path: Path) -> bool:
        """Tell whether an error only follows from what was mended: a key read as another, or parts left out."""
        return path in self.renamed or path in self.torn

    def _missing(self, path: Path, key: int | str) -> None:
        gone = (*path, key) in self.dropped
        read = {place for place, name in self.renamed.items() if place[:-1] == path and name == key}
        gone = gone or bool(read & self.dropped)
        found = bool(read - self.dropped)
        if isinstance(key, int):
            self._report(path, f"expected {key + 1} items or more, found {len(self.at(path))}")
        elif not (gone or found):
            self._report(path, f'the key "{key}" is missing')
        if path == () and key == "spec":
            self.unnamed = True
        elif not found:
            self._drop(path)

    def _unknown_key(self, path: Path) -> None:
        key, holder = str(path[-1]), path[:-1]
        keys = keys_of(self._mended_path(holder), self.mended)
        way_out = _COMMA if self._cut_off(path) else nearest(key, keys)
        self._report(path, f"unknown key {quoted(key)}{way_out}", self.source.keys[path])
        taken = {name for place, name in self.renamed.items() if place[:-1] == holder}
        match = closest(
            key, [name for name in keys if name not in taken and name not in self.at(holder)], MENDED
        )
        if (
            match is None or self.at(path) is None
        ):  # a key without a value is no misspelt key but a lost colon
            self._drop(path)
        else:
            self.renamed[path] = match

    def _cut_off(self, path: Path) -> bool:
        """Tell whether a key is the rest of an expression, as in `{max: max(k, g)}`: some rest closes too much."""
        rests = [str(key) for key, value in self.at(path[:-1]).items() if value is None]
        return path[-1] in rests and any(
            key.count(close) > key.count(open_) for key in rests for open_, close in ("()", "[]")
        )

    def _mended_path(self, path: Path) -> Path:
        """Translate a path of the file to the mended data's."""
        found: Path = ()
        for end, part in enumerate(path):
            place = path[: end + 1]
            kept = self.kept.get(path[:end], [])
            found = (*found, kept.index(part) if isinstance(part, int) else self.renamed.get(place, part))
        return found

    def _word(self, path: Path, value: object, known: list[str], part: Path) -> None:
        """Report a word out of a fixed list; without a near right word `part` is left out."""
        match = closest(value, known, MENDED) if isinstance(value, str) else None
        if isinstance(value, str):
            self._report(path, f"{quoted(value)} is not known here{nearest(value, known)}")
        elif not self._follows(path):
            self._report(path, f"expected one of {', '.join(known)}, found {describe(value)}")
        if match is None:
            self._drop(part)
        else:
            self.replaced[path] = match


def _holds(value: object, part: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
