"""Load specs: a file or text -> checked models with the place of every node; all faults of a file in one run.

Parts that are faulty are mended or left out, so that the rules still judge the rest; the words inside parts left out
count as mentioned, so that no finding only follows from another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import yaml

from fsm_spec.compile import CompileError, compile_table
from fsm_spec.compile_values import resolve_params
from fsm_spec.errors import UserError
from fsm_spec.language import source
from fsm_spec.language.findings import (
    MAX_FINDINGS,
    MENDED,
    Finding,
    Path,
    SpecFindings,
    closest,
    nearest,
    path_text,
)
from fsm_spec.language.repair import Draft
from fsm_spec.language.source import Position, Source
from fsm_spec.language.spec import Spec
from fsm_spec.rules import positions, whole_spec
from fsm_spec.table import Table

# Steps in which drafts are followed under wider values; the shipped specs need 70 at most.
_DRAFT_STEPS: Final = 1_000


@dataclass(frozen=True)
class Loaded:
    """Hold a spec without faults, its text, and line and column (from 1) of every node by path."""

    spec: Spec
    text: str
    file: str
    lines: dict[Path, Position] = field(repr=False)

    def line_of(self, path: Path) -> int:
        """Give the line of a node, e.g. `("transitions", 2)`, or of its nearest ancestor in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path][0]


def load(path: str | FilePath) -> Loaded:
    """Load a spec by path, or a shipped one by name; raises SpecFindings with all faults, UserError for no file."""
    found = find(path)
    return loads(source.read(found, str(found)), str(found))


def loads(text: str, name: str = "<text>") -> Loaded:
    """Load a spec from its text; `name` stands for the file in findings. Raises SpecFindings with all faults."""
    read = source.compose(text, name)
    draft = Draft(read)
    spec = draft.validate()
    findings = [*read.findings, *(_finding(read, *fault) for fault in draft.faults)]
    if spec is not None:
        findings += _judge(spec, draft, compiled=not findings)
    if findings or spec is None:
        ordered = sorted(
            dict.fromkeys(findings), key=lambda finding: (finding.line, finding.column, finding.path)
        )
        raise SpecFindings(_capped(ordered))
    return Loaded(spec, text, name, read.lines)


def _capped(findings: list[Finding]) -> list[Finding]:
    if len(findings) <= MAX_FINDINGS:
        return findings
    last = findings[MAX_FINDINGS - 1]
    rest = len(findings) - MAX_FINDINGS
    return [
        *findings[:MAX_FINDINGS],
        Finding(last.file, last.line, last.column, "", f"{rest} more findings follow"),
    ]


def _finding(read: Source, path: Path, message: str, place: Position | None = None) -> Finding:
    line, column = place or read.position(path)
    return Finding(read.file, line, column, path_text(path), message)


def _judge(spec: Spec, draft: Draft, *, compiled: bool) -> list[Finding]:
    """Apply the rules, then compile for the default and the checker's parameters if nothing is wrong so far."""
    attempt = cache(lambda: _compiled(spec))

    def guards() -> list[tuple[Path, str]]:
        return [fault for fault in attempt().faults.items() if fault[0][-1] == "when"] if compiled else []

    rules = whole_spec.violations(spec, draft.doubt, draft.hurt, guards)
    found = [(draft.original(path), message) for path, message in rules]
    if compiled and not found:
        faults, small = attempt()
        found = list(faults.items()) if small is None else list(positions.faults_of(small))
        found = found or _drafted(spec)
    return [_finding(draft.source, path, message) for path, message in found]


class _Compiled(NamedTuple):
    """Hold what compiling has shown: faults by place, and without any the table for the checker's parameters."""

    faults: dict[Path, str]
    small: Table | None


def _compiled(spec: Spec) -> _Compiled:
    """Compile for the default and the checker's parameters.

    One finding a place: the checker's small values mostly repeat what the defaults have shown.
    """
    small: Table | None = None
    places: dict[Path, str] = {}
    for check in (True, False):
        try:
            table = compile_table(spec, check=check)
            small = small or table
        except CompileError as error:
            places.update(error.faults[::-1])
    return _Compiled(places, None if places else small)


def _drafted(spec: Spec) -> list[tuple[Path, str]]:
    """Follow draft models under values one above the checker's too: a chain of two drafts hides where a third stands.

    Values that cannot be together, and rounds of too many steps, are left to the checker's own.
    """
    if not spec.models:
        return []
    wider = {name: resolved + 1 for name, resolved in resolve_params(spec, check=True).items()}
    try:
        table = compile_table(spec, wider)
    except (UserError, CompileError):
        return []
    return list(positions.faults_of(table, _DRAFT_STEPS))


def shipped() -> dict[str, FilePath]:
    """List the specs that come with the package, by name."""
    folder = FilePath(str(resources.files("fsm_spec.specs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name_or_path: str | FilePath) -> FilePath:
    """Find a spec file by path, or a shipped spec by name without case; raises UserError with the nearest words."""
    path = FilePath(name_or_path)
    text = str(name_or_path)
    if _is_file(path):
        return path
    known = shipped()
    folded = {name.casefold(): file for name, file in known.items()}
    if text.casefold() in folded:
        return folded[text.casefold()]
    if _is_folder(path):
        raise UserError(f"{text} is a folder; give a spec file in it, or the name of a shipped spec")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        beside = sorted(path.parent.glob("*.y*ml"))[:200] if _is_folder(path.parent) else []
        # By the names alone: folder and suffix make any two paths look alike.
        meant = {file.stem: str(file) for file in beside} or {name: name for name in known}
        match = closest(path.stem, meant, MENDED)
        way_out = (
            f'did you mean "{meant[match]}"?' if match else "give the path of a YAML file, or a shipped name"
        )
        raise UserError(f"no spec file {text!r}; {way_out}")
    raise UserError(f"no spec is called {text!r}, and no such file exists{nearest(text, known)}")


def _is_folder(path: FilePath) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # as below
        return False


def _is_file(path: FilePath) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


class _Dumper(yaml.SafeDumper):
    """Write YAML 1.2 words plain and quote what would read as another kind."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        None: [
            ("tag:yaml.org,2002:null", source.NULL),
            ("tag:yaml.org,2002:bool", source.BOOL),
            ("tag:yaml.org,2002:int", source.INT),
            ("tag:yaml.org,2002:float", source.FLOAT),
        ]
    }

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class passes it
        """Write every value out."""
        return True


def dump(spec: Spec) -> str:
    """Write a spec as YAML that loads to an equal spec; what has its default value is left out."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
