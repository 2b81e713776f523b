"""What the pages show is what the program prints.

Each ```console block of README.md and docs/ is a session: a line `$ fsm-spec ...` is run, and the lines below
it, if there are any, are compared with what it printed (stdout and stderr together).
A line `...` stands for any number of lines, `...` within a line for any text of that line.
After the word console, `no-run` leaves a block out (downloads, long runs, other programs), `needs-model` where
SmolLM2 has not been fetched, and `exit=2` expects that exit code of its last command.
The blocks of one page run in order in one folder of their own, with links to the project's folders.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsm_spec.executor.models.store import model_folder
from fsm_spec.table import BUILT_IN_COLUMNS
from fsm_spec.trace import STEP_FIELDS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if path.exists()
)
LINKED = ("specs", "docs", "bench")
MODEL = model_folder("smollm2-135m")


@dataclass
class Command:
    """One command of a page: where it stands, its words, the lines shown below it, and its exit code."""

    line: int
    words: list[str]
    shown: list[str] = field(default_factory=list)
    code: int = 0


Runner = Callable[[list[str]], tuple[str, int]]


def read_blocks(text: str) -> list[tuple[int, list[str], list[str]]]:
    """Return (number of the first line, words of the info string, lines) of all fenced blocks."""
    blocks: list[tuple[int, list[str], list[str]]] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        opened = re.match(r"\s*(`{3,})(.*)$", line)
        if not fence and opened:
            fence = opened[1]
            blocks.append((number + 1, opened[2].split(), []))
        elif fence and line.strip() == fence:
            fence = ""
        elif fence:
            blocks[-1][2].append(line.rstrip())
    return blocks


def join_lines(lines: list[str], first: int) -> list[tuple[int, str]]:
    """Return (number, line) with each command that goes on after a backslash as one line."""
    joined: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=first):
        if joined and joined[-1][1].startswith("$ ") and joined[-1][1].endswith("\\"):
            start, before = joined.pop()
            joined.append((start, before[:-1] + line.removeprefix("> ")))
        else:
            joined.append((number, line))
    return joined


def read_commands(text: str) -> list[Command]:
    """Return the commands of a page that are to be run; raise ValueError for one that is not ours."""
    commands: list[Command] = []
    for first, info, lines in read_blocks(text):
        if info[:1] != ["console"] or "no-run" in info or ("needs-model" in info and not MODEL.exists()):
            continue
        block: list[Command] = []
        for number, line in join_lines(lines, first):
            if line.startswith("$ "):
                words = shlex.split(line.removeprefix("$ "))
                if words[:1] != ["fsm-spec"]:
                    message = f"line {number} runs {words[:1]}, not fsm-spec; mark the block `console no-run`"
                    raise ValueError(message)
                block.append(Command(number, words))
            elif block:
                block[-1].shown.append(line)
        codes = [word.removeprefix("exit=") for word in info if word.startswith("exit=")]
        if block and codes:
            block[-1].code = int(codes[0])
        commands += block
    return commands


def matches(shown: list[str], printed: list[str]) -> bool:
    """Tell whether printed lines are those shown, where a line `...` stands for any lines, also none."""
    parts = []
    for line in shown:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r".*?".join(re.escape(piece) for piece in line.split("...")) + r"\n")
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in printed)) is not None


def trim(lines: list[str]) -> list[str]:
    """Return lines without spaces at their ends and without empty lines at the block's ends."""
    return "\n".join(line.rstrip() for line in lines).strip("\n").split("\n")


def differences(text: str, runner: Runner) -> list[str]:
    """Run a page's commands in order; return one text for each that ended or printed otherwise than shown."""
    wrong = []
    for command in read_commands(text):
        printed, code = runner(command.words)
        where = f"line {command.line}: {shlex.join(command.words)}"
        if code != command.code:
            wrong.append(f"{where}\nended with exit code {code}, not {command.code}, and printed:\n{printed}")
        elif any(command.shown) and not matches(trim(command.shown), trim(printed.splitlines())):
            shown = "\n".join(command.shown)
            wrong.append(f"{where}\nis shown with:\n{shown}\nbut printed:\n{printed}")
    return wrong


@pytest.fixture
def program(tmp_path: Path) -> Runner:
    """Run fsm-spec as this environment has it, in a new folder that looks like the project's."""
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    beside = Path(sys.executable).parent
    # Of a fixed width and without colours, as if printed on the page.
    environment = os.environ | {
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
    }

    def run(words: list[str]) -> tuple[str, int]:
        done = subprocess.run(
            [str(beside / words[0]), *words[1:]],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout, done.returncode

    return run


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_what_is_printed(page: str, program: Runner) -> None:
    """A page whose example no longer works loses the reader who tries it."""
    wrong = differences((ROOT / page).read_text(encoding="utf-8"), program)
    assert not wrong, f"{page}: " + f"\n\n{page}: ".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A link to a file that was moved leads nowhere."""
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    files = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [] == [target for target in files if not ((ROOT / page).parent / target).exists()]


def test_readme_is_among_the_pages() -> None:
    """A README that is not read here could show anything."""
    assert "README.md" in PAGES
    assert "docs/glossary.md" in PAGES


def test_glossary_is_in_order() -> None:
    """A word out of place is not found, and one that is explained twice has two meanings."""
    words = re.findall(
        r"^\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    plain = [word.replace("`", "").casefold() for word in words]
    assert sorted(set(plain)) == plain
    assert len(plain) > 50


@pytest.mark.parametrize(("kind", "words"), [("column", BUILT_IN_COLUMNS), ("trace field", STEP_FIELDS)])
def test_glossary_explains_columns_and_trace_fields(kind: str, words: tuple[str, ...]) -> None:
    """A column or trace field under another name than the glossary's is two words for one thing."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\*\*`(.+?)`\*\* \((.+)\)$", text, re.MULTILINE)
    assert sorted(words) == sorted(word for word, kinds in entries if kind in kinds.split("; "))


PAGE = """Text with `$ fsm-spec no` in it.

```console
$ fsm-spec check ar
ar: 3 states, 12.5 ms
...
done
```

```console no-run
$ make demo
```

```yaml
$ fsm-spec no
```

```console exit=2
$ fsm-spec check \\
>   --json 'a b'
```
"""


def test_runner_accepts_a_true_page() -> None:
    """A runner that finds fault with a true page would be switched off."""
    ran = []

    def echo(words: list[str]) -> tuple[str, int]:
        ran.append(words)
        return ("ar: 3 states, 12.5 ms\nmore\nand more\ndone\n", 0) if len(words) == 3 else ("", 2)

    assert [] == differences(PAGE, echo)
    assert [["fsm-spec", "check", "ar"], ["fsm-spec", "check", "--json", "a b"]] == ran


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("ar: 4 states, 12.5 ms\ndone\n", 0),
        ("ar: 3 states, 12.5 ms\nmore\n", 0),
        ("ar: 3 states, 12.5 ms\ndone\nmore\n", 0),
        ("", 0),
        ("ar: 3 states, 12.5 ms\ndone\n", 1),
    ],
)
def test_runner_rejects_a_false_page(printed: str, code: int) -> None:
    """A runner that cannot fail would let pages age."""
    wrong = differences(
        PAGE.replace(" exit=2", ""), lambda words: (printed, code) if len(words) == 3 else ("", 0)
    )
    assert 1 == len(wrong)
    assert wrong[0].startswith("line 4: fsm-spec check ar\n")


def test_runner_compares_exit_codes() -> None:
    """A command that fails where the page shows success, or the other way round, is a difference."""
    wrong = differences(PAGE, lambda _: ("ar: 3 states, 12.5 ms\ndone\n", 0))
    assert ["line 19: fsm-spec check --json 'a b'"] == [text.splitlines()[0] for text in wrong]
    assert "ended with exit code 0, not 2" in wrong[0]


def test_runner_fills_gaps_within_a_line() -> None:
    """Times and paths differ from run to run; the rest of their line must not."""
    assert matches(["took ... ms on ..."], ["took 12.5 ms on this machine"])
    assert not matches(["took ... ms on ..."], ["took 12.5 s on this machine"])


def test_runner_refuses_other_programs() -> None:
    """A block that looks tested and is not would be trusted."""
    with pytest.raises(ValueError, match=r"line 2 runs \['make'\]"):
        read_commands("```console\n$ make demo\n```\n")
