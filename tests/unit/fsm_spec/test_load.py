"""Loading: all faults of a file in one run, shipped specs by name, and a dump that loads to the same."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.compile import compile_table
from fsm_spec.errors import SpecError, UserError
from fsm_spec.language.findings import SpecFindings
from fsm_spec.load import dump, find, load, loads, shipped

DATA = Path(__file__).resolve().parents[2] / "data"
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
TEXTS = [*(path.read_text() for path in shipped().values()), (DATA / "pool.yaml").read_text()]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"\w+|[^\w\s]", text)})
STRANGE = ["-1", "0", "99999999999", "1.5", "null", "~", "true", "&a", "*a", "!x", "2097152", "a b", "é"]


def test_six_mistakes_give_six_findings() -> None:
    """A person would have to run the loader six times, or would be told of faults that are none."""
    with pytest.raises(SpecFindings) as caught:
        load(EXAMPLES / "six_mistakes.yaml")
    assert [
        '3:19: lossless.claim: "samplng" is not known here; did you mean "sampling"?',
        "6:3: params.spare: the parameter spare is never read; remove it",
        '20:41: forwards.verify.rows[0].logit: unknown key "logit"; did you mean "logits"?',
        '23:14: forwards.verify.ops[0].op: "acept" is not known here; did you mean "accept"?',
        '28:25: transitions[0].to: the state "verfiy" is not declared; did you mean "verify"?',
        "29:63: transitions[1].emit[0]: unexpected ')'",
    ] == [
        str(finding).removeprefix(f"{EXAMPLES / 'six_mistakes.yaml'}:") for finding in caught.value.findings
    ]


def test_loaded_specs_know_their_lines() -> None:
    """Traces and tables would name another line than the one of the transition."""
    loaded = load("ar")
    assert "ar" == loaded.spec.spec
    assert 19 == loaded.line_of(("transitions", 0)) == loaded.line_of(("transitions", 0, "when"))
    assert (17, 3) == loaded.lines["states", "decode"]
    assert loaded.text == find("ar").read_text()
    assert loaded.file == str(find("ar"))


def test_faults_of_concrete_parameters_are_found_by_load() -> None:
    """A plan of a billion rows would be found by whoever runs it first; a place would be reported twice."""
    text = (
        shipped()["ngram"]
        .read_text()
        .replace("range: [1, 32], default: 4", "range: [1, 1048576], default: 1048576")
    )
    with pytest.raises(SpecFindings, match="the plan has 1,048,577 rows") as caught:
        loads(text)
    assert 1 == len(caught.value.findings)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.splitlines()[1])
def test_dumps_load_to_the_same(text: str) -> None:
    """A trace's copy of a spec would be another spec."""
    loaded = loads(text, "here")
    again = loads(dump(loaded.spec))
    assert loaded.spec == again.spec
    assert compile_table(loaded.spec).digest == compile_table(again.spec).digest
    assert "here" == loaded.file


def test_dumps_quote_what_would_read_as_another_kind() -> None:
    """A description such as `1e3` or `true` would come back as a number or truth value."""
    spec = load("ar").spec
    for about in ("1e3", "010", "true", "~", "on", "", "a: b", "- x", "é\n\nb", "0x10", "12"):
        assert about == loads(dump(spec.model_copy(update={"about": about}))).spec.about


def test_shipped_specs_are_found_by_name_without_case() -> None:
    """`AR` would be no spec, or a path would not be taken as one."""
    assert find("AR") == find("ar") == shipped()["ar"]
    assert find(DATA / "pool.yaml") == DATA / "pool.yaml"


def test_unknown_specs_name_the_nearest(tmp_path: Path) -> None:
    """A misspelt name would be answered with a traceback."""
    with pytest.raises(
        UserError, match=r"no spec is called 'isdd', and no such file exists; did you mean \"isd\"\?"
    ):
        find("isdd")
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(UserError, match=r"no spec file '.*mina.yaml'; did you mean \".*mine.yaml\"\?"):
        find(tmp_path / "mina.yaml")
    with pytest.raises(UserError, match=r"no spec file '.*nofile.yaml'; give the path of a YAML file"):
        find(tmp_path / "nofile.yaml")
    with pytest.raises(UserError, match="is a folder; give a spec file in it"):
        find(tmp_path)
    with pytest.raises(UserError, match=r"no spec file '/nowhere/ar.yaml'; did you mean \"ar\"\?"):
        find("/nowhere/ar.yaml")
    with pytest.raises(UserError, match="no spec file 'docs/nothing'; give the path of a YAML file"):
        find("docs/nothing")
    for odd in ("a\0b", "x" * 5_000, "", str(tmp_path)):
        with pytest.raises(UserError):
            find(odd)


def test_absent_and_directory_paths_are_user_errors(tmp_path: Path) -> None:
    """A folder would be read as a file."""
    with pytest.raises(UserError):
        load(tmp_path)


def mutated(seed: int) -> str:
    """Change a few words or lines of a spec's text."""
    choose = random.Random(seed)
    text = choose.choice(TEXTS)
    for _ in range(choose.randint(1, 4)):
        lines = text.split("\n")
        match choose.randrange(5):
            case 0:
                del lines[choose.randrange(len(lines))]
                text = "\n".join(lines) + "\n"
            case 1:
                lines.insert(choose.randrange(len(lines)), choose.choice(lines))
                text = "\n".join(lines)
            case kind:
                spans = [word.span() for word in re.finditer(r"\w+|[^\w\s]", text)]
                first, last = choose.choice(spans or [(0, 0)])
                new = "" if kind == 2 else choose.choice(WORDS + STRANGE)
                text = text[:first] + new + text[last:]
    return text


@given(st.integers(0, 2**32))
@settings(max_examples=150)
def test_no_change_of_a_text_breaks_the_loader(seed: int) -> None:
    """A slip of the pen would end in a traceback, or hang; what loads would not survive a dump."""
    text = mutated(seed)
    start = time.process_time()
    try:
        loaded = loads(text)
    except SpecError as error:
        longest = max(len(line) for line in str(error).splitlines())
    else:
        longest = 1
        assert loads(dump(loaded.spec)).spec == loaded.spec
    assert 0 < longest < 1_000
    assert time.process_time() - start < 1


@given(st.text(max_size=200))
def test_no_text_breaks_the_loader(text: str) -> None:
    """A file that is no spec at all would end in a traceback."""
    with pytest.raises(SpecFindings):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        TEXTS[0] + "params:\n" + "".join(f"  p{n}: {{rang: [1, x], defaul: 1}}\n" for n in range(190)),
        TEXTS[0] + "".join(f"key{n}: 1\n" for n in range(4_000)),
        TEXTS[0].replace("emit: [", "emit: [" + '"next[:1]", ' * 8_000),
        TEXTS[0].replace("keep: 1", "keep: " + "+".join(["1"] * 400)),
        TEXTS[0].replace("keep: 1", 'keep: "' + "(" * 400 + "1" + ")" * 400 + '"'),
        TEXTS[0].replace("causal", "x" * 200_000),
        TEXTS[0].replace("states:\n", "states:\n" + "".join(f"  s{n}: {{phase: draft}}\n" for n in range(198))),
    ],
    ids=["bad params", "unknown keys", "pieces", "sum", "parentheses", "long word", "states"],
)  # fmt: skip
def test_absurd_specs_are_answered_within_a_second(text: str) -> None:
    """A spec of absurd size would keep a person waiting."""
    start = time.process_time()
    with pytest.raises(SpecFindings):
        loads(text)
    assert time.process_time() - start < 1
