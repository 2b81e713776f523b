"""Source text of a spec: bytes -> YAML 1.2 words, plain data, and the line and column of every node.

Built on the event stream of PyYAML, so that an absurd file (expanding or cyclic anchors, deep nesting, megabytes)
is refused while it is read, before anything of its size exists. Only `true` and `false` are truth values, integers
are decimal, and everything else is a text; so `on`, `off`, `no` and `y` are names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, NoReturn

import yaml

from fsm_spec.errors import UserError
from fsm_spec.language.findings import MAX_FINDINGS, Finding, Path, SpecFindings, path_text, quoted

MAX_BYTES: Final = 256 * 1024
MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 32
# Enough digits for any 32-bit integer, leading zeros included; Python refuses to read some thousands.
_MAX_DIGITS: Final = 18

Position = tuple[int, int]
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NULL: Final = re.compile(r"(?:~|null|Null|NULL|)\Z")
BOOL: Final = re.compile(r"(?:true|false)\Z")
INT: Final = re.compile(r"[-+]?[0-9]+\Z")
FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


class Kind(NamedTuple):
    """Say what a file holds, and which keys one starts with."""

    name: str
    keys: str

    @property
    def told(self) -> str:
        """Say what a document is."""
        return f"a {self.name} is a mapping of keys such as {self.keys}"


SPEC: Final = Kind("spec", "spec, forwards and states")
POLICY: Final = Kind("policy", "policy, admit and prefill")


@dataclass(slots=True)
class _Node:
    """Hold a node: a scalar, `{key: (line, column, node)}` or a list of nodes; aliases share one node."""

    value: Any
    line: int
    column: int
    inner: int | None = None
    size: int = 1
    height: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Hold a file's data with positions by path; `findings` are faults that left the rest readable.

    `lines` gives a scalar's own place, and the key's place of a mapping or list that has one; `keys` gives the key's
    place; `inner` gives the column where a scalar's text starts, if it stands on one line just as it is read.
    Values at the paths `broken` are unreadable; `dropped` holds the texts inside parts that were left out.
    """

    file: str
    text: str
    data: dict[str, Any]
    lines: dict[Path, Position]
    keys: dict[Path, Position]
    inner: dict[Path, int]
    findings: list[Finding]
    broken: set[Path]
    dropped: set[str]

    def position(self, path: Path) -> Position:
        """Give line and column of a path, or of its nearest ancestor in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def _fail(file: str, line: int, column: int, message: str) -> NoReturn:
    raise SpecFindings([Finding(file, line, column, "", message)])


def read(path: FilePath, file: str) -> str:
    """Read a file's text; raises SpecFindings for a wrong size or encoding, UserError where nothing can be read."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{file} cannot be read: {reason}; give the path of a YAML file") from error
    return decode(data, file)


def decode(data: bytes, file: str) -> str:
    """Decode UTF-8 with or without a byte order mark; raises SpecFindings."""
    if len(data) > MAX_BYTES:
        _fail(file, 1, 1, f"the file is larger than {MAX_BYTES // 1024} KB; a spec is a page or two")
    if data.startswith(_WIDE_MARKS):
        _fail(file, 1, 1, "the file is UTF-16 or UTF-32; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        _fail(file, line, column, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8")


def compose(text: str, file: str, holds: Kind = SPEC) -> Source:
    """Read YAML text that `holds` one document of a kind.

    Raises SpecFindings where nothing can be read on, else collects what is wrong.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        _fail(file, 1, 1, f"the text is larger than {MAX_BYTES // 1024} KB; a {holds.name} is a page or two")
    strange = _UNPRINTABLE.search(text)
    if strange:
        at = strange.start()
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        _fail(file, line, column, f"the character U+{ord(strange[0]):04X} may not stand in a spec; remove it")
    return _Composer(text, file, holds).compose()


def scalar(text: str) -> str | int | float | bool | None:
    """Resolve a plain scalar by YAML 1.2's words: null, true, false, decimal integers, decimal fractions, texts."""
    if NULL.fullmatch(text):
        return None
    if BOOL.fullmatch(text):
        return text == "true"
    if INT.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    return float(text) if FLOAT.fullmatch(text) and not INT.fullmatch(text) else text


@dataclass
class _Composer:
    """Compose one document from events, counting nodes after expansion of aliases."""

    text: str
    file: str
    holds: Kind
    total: int = 0
    path: list[str | int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    broken: set[Path] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    anchors: dict[str, _Node | None] = field(default_factory=dict)

    def compose(self) -> Source:
        """Compose the whole text; its root is a mapping."""
        self.events: Iterator[Any] = yaml.parse(self.text, Loader=_LOADER)
        try:
            root = self._document()
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
        if not isinstance(root.value, dict):
            self._fatal(root.line, root.column, self.holds.told)
        places: dict[Path, Position] = {(): (root.line, root.column)}
        source = Source(self.file, self.text, {}, places, {}, {}, self.findings, self.broken, self.dropped)
        source.data.update(_expand(root, (), source))
        return source

    def _document(self) -> _Node:
        next(self.events)  # the stream's start
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            self._fatal(1, 1, f"the file is empty; {self.holds.told}")
        root = self._node(next(self.events), 0)
        next(self.events)  # the document's end
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._fatal(*_place(event), f"a second document starts here; a file holds one {self.holds.name}")
        return root

    def _syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        lines = self.text.splitlines()
        row = lines[line - 1] if line <= len(lines) else ""
        hint = "; a tab may not indent, use spaces" if row[column - 1 : column] == "\t" else ""
        context = f" {error.context}" if error.context else ""
        self._fatal(line, column, f"this is no YAML: {error.problem or 'unreadable'}{context}{hint}")

    def _fatal(self, line: int, column: int, message: str) -> NoReturn:
        finding = Finding(self.file, line, column, path_text(tuple(self.path)), message)
        raise SpecFindings([*self.findings, finding])

    def _report(self, line: int, column: int, message: str) -> None:
        if len(self.findings) == MAX_FINDINGS:
            self._fatal(line, column, f"more than {MAX_FINDINGS} faults; the rest is not read")
        self.findings.append(Finding(self.file, line, column, path_text(tuple(self.path)), message))

    def _count(self, size: int, event: Any) -> None:
        self.total += size
        if self.total > MAX_NODES:
            self._fatal(*_place(event), f"the file has more than {MAX_NODES} nodes, anchors expanded")

    def _node(self, event: Any, depth: int) -> _Node:
        line, column = _place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        self._count(1, event)
        if depth > MAX_DEPTH:
            self._fatal(line, column, f"the file is nested more than {MAX_DEPTH} deep")
        if event.tag is not None:
            self._report(
                line, column, f"the tag {quoted(event.tag)} has no meaning here; remove it, or quote a text"
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            node = self._mapping(event, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> _Node:
        line, column = _place(event)
        if event.anchor not in self.anchors:
            self._report(line, column, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
            self.broken.add(tuple(self.path))
            return _Node(None, line, column)
        node = self.anchors[event.anchor]
        if node is None:
            self._fatal(
                line, column, f"the alias *{event.anchor} stands inside its own anchor &{event.anchor}"
            )
        self._count(node.size, event)
        if depth + node.height > MAX_DEPTH:
            self._fatal(line, column, f"the file is nested more than {MAX_DEPTH} deep, anchors expanded")
        return node

    def _scalar(self, event: Any) -> _Node:
        line, column = _place(event)
        plain = event.style in (None, "")  # the C parser says "", the Python one None
        value = scalar(event.value) if plain else event.value
        strange = _UNPRINTABLE.search(event.value)
        if strange:
            message = f"the character U+{ord(strange[0]):04X} may not stand in a text of a spec; remove it"
            self._report(line, column, message)
            self.broken.add(tuple(self.path))
        if isinstance(value, str) and plain and INT.fullmatch(value):
            self._report(line, column, f"the number {quoted(value)[1:-1]} is too long; values fit in 32 bits")
            self.broken.add(tuple(self.path))
        quote = 0 if plain else 1
        raw = self.text[event.start_mark.index + quote : event.end_mark.index - quote]
        return _Node(value, line, column, inner=column + quote if raw == event.value else None)

    def _sequence(self, event: Any, depth: int) -> _Node:
        node = _Node([], *_place(event))
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            self.path.append(len(node.value))
            _adopt(node, child := self._node(event, depth + 1))
            node.value.append(child)
            self.path.pop()
        return node

    def _mapping(self, event: Any, depth: int) -> _Node:
        node = _Node({}, *_place(event))
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line, column = _place(event)
            key = self._node(event, depth + 1)
            if not isinstance(key.value, str):
                self._report(line, column, f"a key is a text, not {_spelling(key.value)}; quotes make it one")
            self.path.append(key.value if isinstance(key.value, str) else "?")
            child = self._node(next(self.events), depth + 1)
            if not isinstance(key.value, str):
                self.dropped.update(_texts(child))
            elif key.value in node.value:
                first = node.value[key.value][0]
                self._report(line, column, f"this key is given twice, first in line {first}; remove one")
                self.dropped.update(_texts(child))
            else:
                _adopt(node, child)
                node.value[key.value] = (line, column, child)
            self.path.pop()
        return node


def _texts(node: _Node) -> Iterator[str]:
    """Yield every text inside a node, keys included."""
    if isinstance(node.value, str):
        yield node.value
    elif isinstance(node.value, list):
        for child in node.value:
            yield from _texts(child)
    elif isinstance(node.value, dict):
        for key, (_, _, child) in node.value.items():
            yield key
            yield from _texts(child)


def _spelling(value: Any) -> str:
    """Name a key that is no text as YAML spells it."""
    if isinstance(value, (list, dict)):
        return "a list or mapping"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def _adopt(parent: _Node, child: _Node) -> None:
    parent.size += child.size
    parent.height = max(parent.height, child.height + 1)


def _place(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _expand(node: _Node, path: Path, source: Source) -> Any:
    """Turn nodes into plain data, filling the positions of every path; the size is bounded already."""
    if node.inner is not None:
        source.inner[path] = node.inner
    if isinstance(node.value, list):
        items = []
        for index, child in enumerate(node.value):
            source.lines[*path, index] = child.line, child.column
            items.append(_expand(child, (*path, index), source))
        return items
    if isinstance(node.value, dict):
        mapping = {}
        for key, (line, column, child) in node.value.items():
            inside = (*path, key)
            own_place = not isinstance(child.value, (list, dict, type(None)))
            source.keys[inside] = line, column
            source.lines[inside] = (child.line, child.column) if own_place else (line, column)
            mapping[key] = _expand(child, inside, source)
        return mapping
    return node.value
