"""The command `check` at work: load, decide, report; its options are in `cli_check.py`, the search in `check.py`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from fsm_spec.checker import check, junit, pytest_case, recorded, report, sequence
from fsm_spec.checker.interrupt import interruptible
from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError, UserError
from fsm_spec.language.findings import SpecFindings, nearest
from fsm_spec.load import Loaded, load
from fsm_spec.policy_file import load_policy
from fsm_spec.screen import FoldedScreen
from fsm_spec.tiers import refuse_given, tiers_of
from fsm_spec.writing import writing

if TYPE_CHECKING:
    from fsm_spec.checker.check import Bounds, Checked, Decided
    from fsm_spec.checker.expect import Expected
    from fsm_spec.language.spec import Spec

FAULTY: Final = "faulty"
# From the strongest to the weakest: over several files the first that occurs gives the exit code.
EXIT_CODES: Final = {FAULTY: 2, check.REFUTED: 1, check.UNDETERMINED: 3, check.PROVED: 0}


@dataclass(frozen=True)
class Reports:
    """Name the files to write beside what is printed."""

    junit: Path | None = None
    trace: Path | None = None
    sequence: Path | None = None
    pytest: Path | None = None

    @property
    def of_counterexamples(self) -> dict[str, Path]:
        """List the files that hold a counterexample, by option."""
        given = {"--trace": self.trace, "--sequence": self.sequence, "--pytest": self.pytest}
        return {option: path for option, path in given.items() if path is not None}


@dataclass(frozen=True)
class Answer:
    """Hold what is known of one file: the result of its check, or why there is none."""

    name: str
    found: Loaded | None = None
    result: Checked | None = None
    error: FsmSpecError | None = None
    expected: Expected | None = None
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Give the verdict, or that the file is faulty."""
        return self.result.verdict if self.result and not self.error else FAULTY

    def content(self) -> dict[str, Any]:
        """Give the answer as JSON values."""
        if self.result and self.found and not self.error:
            expected = {"expected": self.expected.content()} if self.expected else {}
            return {"file": self.found.file, **self.result.content(), **expected}
        if isinstance(self.error, SpecFindings):
            findings = [asdict(finding) for finding in self.error.findings]
            return {"file": findings[0]["file"], "verdict": FAULTY, "findings": findings}
        return {"file": self.name, "verdict": FAULTY, "findings": [], "error": str(self.error)}


def execute(
    names: Sequence[str],
    settings: Mapping[str, int],
    bounds: Bounds,
    reports: Reports | None = None,
    chances: Sequence[str] = (),
    limit: int | None = None,
    *,
    verbose: bool = False,
    as_json: bool = False,
) -> int:
    """Check specs, print what was found, write the reports; gives the exit code.

    With `chances` of operator results, expected values of a request that emits `limit` tokens come beside.
    """
    if limit is not None and not chances:
        raise UserError(
            "--expect-limit says for how many tokens values are expected; give their chances by --expect"
        )
    bounds.refuse_senseless()
    for policy in bounds.policies:
        load_policy(policy)
    loaded = {name: _load(name) for name in dict.fromkeys(names)}
    settings = _named(settings, [found.spec for found in loaded.values() if isinstance(found, Loaded)])
    reports = reports or Reports()
    answers: list[Answer] = []
    with interruptible(lambda: _interrupted(answers, list(loaded), as_json=as_json)):
        for name, found in loaded.items():
            answers.append(_expected(_answer(name, found, settings, bounds), bounds, chances, limit))
    written = _write(answers, bounds, reports)
    if as_json:
        contents = [answer.content() for answer in answers]
        _print_json(contents)
    else:
        console = FoldedScreen(whole=r"^\s*replay: ")  # a command to copy

        def command(answer: Answer, decided: Decided) -> str:
            return replay_command(answer, decided, bounds, reports)

        report.report(console, answers, command, verbose=verbose)
        for line in written:
            console.print(line, markup=False)
    verdicts = {answer.verdict for answer in answers}
    return next(code for verdict, code in EXIT_CODES.items() if verdict in verdicts)


def _print_json(contents: Sequence[dict[str, Any]]) -> None:
    typer.echo(json.dumps(contents[0] if len(contents) == 1 else contents))


def _interrupted(answers: Sequence[Answer], names: Sequence[str], *, as_json: bool) -> None:
    """Say what is known where a person ends the check: of the specs that are left, nothing."""
    left = names[len(answers) :]
    if not as_json:
        sys.stderr.write(f"\ninterrupted: nothing is claimed of {', '.join(left)}\n")
        return
    open_ = [{"file": name, "verdict": check.UNDETERMINED, "interrupted": True} for name in left]
    _print_json([*(answer.content() for answer in answers), *open_])


def _load(name: str) -> Loaded | FsmSpecError:
    try:
        return load(name)
    except FsmSpecError as error:
        return error


def _named(settings: Mapping[str, int], specs: Sequence[Spec]) -> dict[str, int]:
    """Spell the parameters as the specs do, where only the case differs; refuse one that none of them has."""
    known = {name for spec in specs for name in spec.params}
    named: dict[str, int] = {}
    for given, value in settings.items():
        alike = [name for name in known if name.casefold() == given.casefold()]
        name = given if given in known or len(alike) != 1 else alike[0]
        if specs and name not in known:
            told = ", ".join(spec.spec for spec in specs)
            raise UserError(f"{told}: no parameter is called {given!r}{nearest(given, known)}")
        if named.setdefault(name, value) != value:
            raise UserError(f"--set {given}={value}: {name} was set to {named[name]} before; give one value")
    return named


def _answer(name: str, found: Loaded | FsmSpecError, settings: Mapping[str, int], bounds: Bounds) -> Answer:
    if isinstance(found, FsmSpecError):
        return Answer(name, error=found)
    own = {name: value for name, value in settings.items() if name in found.spec.params}
    try:
        for policy in bounds.policies:
            refuse_given(load_policy(policy), own)
        table = compile_table(found.spec, own, check=True, page_size=bounds.page_size, line_of=found.line_of)
        with _progress(found.spec.spec) as tick:
            return Answer(name, found, check.check(table, bounds, tick), settings=own)
    except FsmSpecError as error:
        return Answer(name, found, error=error)


def _expected(answer: Answer, bounds: Bounds, chances: Sequence[str], limit: int | None) -> Answer:
    """Add the expected values, under the parameters given or the defaults: the small ones are for searching."""
    if not (chances and answer.found and answer.result):
        return answer
    from fsm_spec.checker.chances import chances_of  # noqa: PLC0415 - what few checks need
    from fsm_spec.checker.expect import LIMIT, expect  # noqa: PLC0415 - as above

    try:
        table = compile_table(answer.found.spec, answer.settings, page_size=bounds.page_size)
        for policy in map(load_policy, bounds.policies):
            # A request alone gets the size of one that runs.
            table = tiers_of(table, policy).table(1)
        return replace(answer, expected=expect(table, chances_of(table, chances), limit or LIMIT))
    except FsmSpecError as error:
        return replace(answer, error=error)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None] | None]:
    """Show what is searched on a terminal's standard error; a plain line, as an interrupt leaves it as it is."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda search: _line(f"{name}: searching {search}")
    _line("")


def _line(text: str) -> None:
    """Write over the last line of standard error."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _write(answers: Sequence[Answer], bounds: Bounds, reports: Reports) -> list[str]:
    """Write the reports; gives a line for each."""
    lines = []
    if reports.junit:
        _save(reports.junit, junit.junit(answers))
        lines.append(f"wrote {reports.junit}")
    files = reports.of_counterexamples
    if not files:
        return lines
    first = next(_counterexamples(answers), None)
    if first is None:
        return [*lines, f"nothing is refuted by steps: {', '.join(map(str, files.values()))} not written"]
    answer, decided = first
    assert answer.found is not None
    assert answer.result is not None
    assert decided.counterexample is not None
    table, file = answer.result.table, answer.found.file
    record = recorded.record(table, decided.counterexample, file, answer.found.text)
    command = search_command(answer, decided, bounds)
    texts = {
        "--trace": json.dumps(record, indent=1) + "\n",
        "--sequence": sequence.mermaid(decided.counterexample),
        "--pytest": pytest_case.case(record, decided.counterexample, command),
    }
    for option, path in files.items():
        _save(path, texts[option])
        lines.append(f"wrote {path}: {decided.name}")
    return lines


def _counterexamples(answers: Sequence[Answer]) -> Iterator[tuple[Answer, Decided]]:
    for answer in answers:
        for decided in answer.result.refuted if answer.result else ():
            if decided.counterexample:
                yield answer, decided


def _save(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")


def replay_command(answer: Answer, decided: Decided, bounds: Bounds, reports: Reports) -> str:
    """Give the command that replays a counterexample: from its file, else after the search that found it."""
    if reports.trace:
        return f"fsm-spec replay {shlex.quote(str(reports.trace))}"
    return f"{search_command(answer, decided, bounds)} --trace found.json; fsm-spec replay found.json"


def search_command(answer: Answer, decided: Decided, bounds: Bounds) -> str:
    """Give the command that searches only where a counterexample was found."""
    assert decided.counterexample is not None
    setting = decided.counterexample.setting
    policy = next(name for name in bounds.policies if load_policy(name).policy == setting.policy.policy)
    words = ["fsm-spec", "check", answer.name]
    words += ["--requests", str(setting.requests), "--pages", str(setting.pool.pages)]
    words += ["--page-size", str(setting.pool.page_size), "--policy", policy]
    words += [] if bounds.symmetry else ["--no-symmetry"]
    words += [] if bounds.abort is None else ["--abort" if bounds.abort else "--no-abort"]
    words += ["--chunks"] if bounds.chunks else []
    words += [] if bounds.lag is None else ["--lag", str(bounds.lag)]
    words += ["--prefix"] if bounds.prefix else []
    words += [] if bounds.interleave is None else ["--interleave", bounds.interleave]
    for name in bounds.properties:
        words += ["--property", name]
    for name, value in answer.settings.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)
