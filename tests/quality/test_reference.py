"""Pages say what code says: reference pages are up to date, examples are what the pages tell, lists are complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

from fsm_spec.checker import properties
from fsm_spec.compile import compile_table
from fsm_spec.decision import ADMISSIONS
from fsm_spec.language.scope import RESERVED
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, Prefill
from fsm_spec.replay import replay
from fsm_spec.trace import STEP_FIELDS, header

Program = Callable[..., tuple[int, str]]


@pytest.fixture
def reference(project: Path) -> Program:
    """Return a function that runs scripts/reference.py; it gives the exit code and what was said."""

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(project / "scripts" / "reference.py"), *arguments]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_reference_pages_are_up_to_date(reference: Program) -> None:
    """A page that is not written anew after a change says what was true once."""
    assert (0, "") == reference("--check")


def test_stale_pages_are_seen_and_mended(reference: Program, project: Path, tmp_path: Path) -> None:
    """A check that cannot fail would let pages age."""
    shutil.copytree(project / "docs", tmp_path / "docs")
    pages = [tmp_path / "docs" / "cli.md", tmp_path / "docs" / "reference" / "operators.md"]
    for page in pages:
        page.write_text(page.read_text(encoding="utf-8").replace("one", "two"), encoding="utf-8")
    code, said = reference("--check", "--root", str(tmp_path))
    assert (1, 2) == (code, said.count("is out of date"))
    assert 0 == reference("--root", str(tmp_path))[0]
    text = pages[1].read_text(encoding="utf-8")
    assert (project / "docs" / "reference" / "operators.md").read_text(encoding="utf-8") == text


def test_missing_tables_of_options_are_seen(reference: Program, project: Path, tmp_path: Path) -> None:
    """A new command without a place on its page would be unknown to readers."""
    shutil.copytree(project / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "cli.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("<!-- options: replay -->", ""), encoding="utf-8"
    )
    code, said = reference("--check", "--root", str(tmp_path))
    assert (1, "docs/cli.md: marks and commands differ in replay\n") == (code, said)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_tutorial_shows_the_file_that_it_runs(project: Path) -> None:
    """A reader who types the pieces gets the file that the page's commands run."""
    pieces = blocks(project / "docs" / "tutorial.md", "yaml")
    assert (project / "docs" / "examples" / "echo.yaml").read_text(encoding="utf-8") == "".join(pieces)


@pytest.mark.parametrize(
    ("name", "variant", "lines"),
    [
        ("echo", "slips", 4),
        ("echo", "gap", 1),
        ("echo", "keep", 1),
        ("echo", "slot", 1),
        ("relay", "slips", 2),
        ("relay", "gap", 1),
    ],
)
def test_broken_examples_differ_as_told(project: Path, name: str, variant: str, lines: int) -> None:
    """A broken example with another difference would show another fault than the page explains."""
    examples = project / "docs" / "examples"
    right = (examples / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    broken = (examples / f"{name}_{variant}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines == sum(one != other for one, other in zip(right, broken, strict=True))


def test_guide_shows_the_file_that_it_runs(project: Path) -> None:
    """A reader who types the pieces of the guide gets the file that its commands run."""
    pieces = blocks(project / "docs" / "guides" / "write_your_own.md", "yaml")
    assert (project / "docs" / "examples" / "relay.yaml").read_text(encoding="utf-8") == "".join(pieces)


def test_language_page_shows_the_shipped_example(project: Path) -> None:
    """An example that is no longer valid teaches mistakes."""
    whole, groups, model = blocks(project / "docs" / "language.md", "yaml")[:3]
    shipped = (project / "specs" / "linear_spec.yaml").read_text(encoding="utf-8")
    forwards = whole[whole.index("forwards:") : whole.index("check:")]
    assert forwards in shipped
    assert indent(groups, "    ") in (project / "specs" / "quadratic.yaml").read_text(encoding="utf-8")
    assert model in (project / "docs" / "examples" / "slots.yaml").read_text(encoding="utf-8")


def test_language_page_names_every_word_and_policy_key(project: Path) -> None:
    """A word that is reserved and not listed, or a key that no page explains, is found by accident only."""
    text = (project / "docs" / "language.md").read_text(encoding="utf-8")
    words = re.search(r"Words of the language are reserved: `([a-z_ ]+)`", text)
    assert words is not None
    assert RESERVED == set(words[1].split())
    keys = [name for name in Policy.model_fields if name != "prefill"]
    for key in [*keys, *(f"prefill.{name}" for name in Prefill.model_fields), *ADMISSIONS]:
        assert f"| `{key}` |" in text


def test_check_guide_lists_the_built_in_properties(project: Path) -> None:
    """A property that the guide leaves out cannot be looked up when it breaks."""
    text = (project / "docs" / "guides" / "check.md").read_text(encoding="utf-8")
    for name in ("ar", str(project / "docs" / "examples" / "slots.yaml")):
        table = compile_table(load(name).spec, check=True)
        assert [] == [sentence for sentence in properties.built_in(table) if sentence not in text]


def test_traces_guide_explains_every_key(project: Path) -> None:
    """A key of a record that is not explained cannot be mapped."""
    text = (project / "docs" / "guides" / "traces.md").read_text(encoding="utf-8")
    table = compile_table(load("ar").spec)
    keys = [*STEP_FIELDS, *header(table, Policy(), Pool(1, 1), "", "")]
    assert [] == [key for key in keys if f"`{key}`" not in text]


def test_mapped_trace_is_allowed(project: Path, tmp_path: Path) -> None:
    """The program on the page writes a trace that replays as the page shows; a wrong KV length is found."""
    page = project / "docs" / "guides" / "traces.md"
    (program,) = blocks(page, "python")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    done = replay(tmp_path / "engine.jsonl")
    assert 1 == done.requests
    shown = f"{done.steps} steps of 1 request, {done.ended} ended, {done.emitted} tokens emitted"
    assert shown in page.read_text(encoding="utf-8")
    wrong = program.replace("(2, 1, 7, 3, 3)", "(2, 1, 8, 3, 3)")
    subprocess.run([sys.executable, "-c", wrong], cwd=tmp_path, check=True)
    with pytest.raises(Exception, match="table: 7") as found:
        replay(tmp_path / "engine.jsonl")
    sentence = str(found.value).removeprefix(f"{tmp_path}/")
    assert sentence in page.read_text(encoding="utf-8")
