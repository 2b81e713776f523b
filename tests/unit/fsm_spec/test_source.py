"""Source text: YAML 1.2 words, positions, and absurd files that are refused at once."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
import yaml

from fsm_spec.errors import UserError
from fsm_spec.language import source
from fsm_spec.language.findings import MAX_FINDINGS, SpecFindings
from fsm_spec.language.source import compose, decode, read, scalar

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)


def refusal(text: str | bytes) -> str:
    """Give the findings of a text that cannot be read."""
    with pytest.raises(SpecFindings) as caught:
        compose(text if isinstance(text, str) else decode(text, "f"), "f")
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("on", "on"),
        ("off", "off"),
        ("no", "no"),
        ("y", "y"),
        ("~", None),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("0x10", "0x10"),
        ("0o7", "0o7"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        (".inf", ".inf"),
        ("1\n", "1\n"),
        ("<<", "<<"),
    ],
)
def test_words_are_those_of_yaml_1_2(word: str, value: object) -> None:
    """A name such as `on` would turn into a truth value, or a number into another one."""
    assert (value, type(value)) == (scalar(word), type(scalar(word)))


def test_positions_of_every_node() -> None:
    """Findings and traces would name another line or column than the person sees."""
    read = compose(
        "a: 'xy'\nb:\n  c: [1, \"p q\"]\n  d:\n    - e: >\n        long\n        text\n  n:\n", "f"
    )
    assert {"a": "xy", "b": {"c": [1, "p q"], "d": [{"e": "long text\n"}], "n": None}} == read.data
    assert (1, 4) == read.lines["a",]
    assert 5 == read.inner["a",]
    assert (3, 3) == read.lines["b", "c"]
    assert (3, 10) == read.lines["b", "c", 1]
    assert 11 == read.inner["b", "c", 1]
    assert (5, 10) == read.lines["b", "d", 0, "e"] == read.position(("b", "d", 0, "e", "gone"))
    assert ("b", "d", 0, "e") not in read.inner
    assert (8, 3) == read.lines["b", "n"] == read.keys["b", "n"]


def test_quoted_words_and_aliases_stay_what_they_are() -> None:
    """A quoted number would become a number, or an alias would share a place with its anchor."""
    read = compose('a: &x ["1", true]\nb: *x\n', "f")
    assert {"a": ["1", True], "b": ["1", True]} == read.data
    assert (1, 8) == read.lines["b", 0]
    assert read.data["a"] is not read.data["b"]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("", "f:1:1: the file is empty; a spec is a mapping of keys such as spec, forwards and states"),
        ("# nothing", "f:1:1: the file is empty; a spec is a mapping of keys such as spec, forwards and states"),
        ("- a", "f:1:1: a spec is a mapping of keys such as spec, forwards and states"),
        ("a: 1\n---\nb: 2", "f:2:1: a second document starts here; a file holds one spec"),
        ("a: &x [*x]", "f:1:8: a[0]: the alias *x stands inside its own anchor &x"),
        ("a: [1,", "f:2:1: a: this is no YAML: did not find expected node content while parsing a flow node"),
        (
            "a:\n\tb: 1",
            ("f:2:1: a: this is no YAML: found character that cannot start any token while scanning for the next "
            "token; a tab may not indent, use spaces"),
        ),
        ("%YAML 3.0\n---\na: 1", "f:1:1: this is no YAML: found incompatible YAML document"),
        ("a: b\0", "f:1:5: the character U+0000 may not stand in a spec; remove it"),
        ("x: 1\na: \ud800", "f:2:4: the character U+D800 may not stand in a spec; remove it"),
        (b"a: 1\nb: caf\xe9", "f:2:7: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "f:1:1: the file is UTF-16 or UTF-32; save it as UTF-8"),
        ("{a: " * 40, ("f:1:130: a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a: the file is nested "
        "more than 32 deep")),
        ("[" * 100_000, "f:1:1001: this is no YAML: exceeded maximum nesting depth while increasing flow level"),
        ("x" * 300_000, "f:1:1: the text is larger than 256 KB; a spec is a page or two"),
        ("é" * 150_000, "f:1:1: the text is larger than 256 KB; a spec is a page or two"),
        (b"x" * 10_000_000, "f:1:1: the file is larger than 256 KB; a spec is a page or two"),
        (LAUGHS, "f:5:15: a4[1]: the file has more than 20000 nodes, anchors expanded"),
        ("a: [" + "x," * 30_000 + "]", "f:1:39999: a[19997]: the file has more than 20000 nodes, anchors expanded"),
        (
            "a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a",
            ("f:2:24: b[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: the file is nested more than 32 "
            "deep, anchors expanded"),
        ),
    ],
)  # fmt: skip
def test_absurd_files_are_refused_within_a_second(text: str | bytes, finding: str) -> None:
    """A broken or hostile file would hang, fill the memory, or be answered without a place."""
    start, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert finding == refusal(text)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 200 * 1024


def test_faults_that_leave_the_rest_readable_are_collected() -> None:
    """One wrong key would hide the other faults of the file."""
    text = "a: 1\na: [p, {q: r}]\n2: s\n? [t]\n: u\n~: 3\ntrue: 1\nb: !x 1\nc: *d\ne: 9999999999999999999\n"
    read = compose(text, "f")
    assert [
        "f:2:1: a: this key is given twice, first in line 1; remove one",
        "f:3:1: a key is a text, not 2; quotes make it one",
        "f:4:3: a key is a text, not a list or mapping; quotes make it one",
        "f:6:1: a key is a text, not null; quotes make it one",
        "f:7:1: a key is a text, not true; quotes make it one",
        'f:8:4: b: the tag "!x" has no meaning here; remove it, or quote a text',
        "f:9:4: c: the alias *d has no anchor &d before it",
        "f:10:4: e: the number 9999999999999999999 is too long; values fit in 32 bits",
    ] == [str(finding) for finding in read.findings]
    assert {("c",), ("e",)} == read.broken
    assert {"p", "q", "r", "s", "u"} == read.dropped
    assert 1 == read.data["a"]


def test_findings_of_a_file_are_bounded() -> None:
    """A file of ten thousand faults would print ten thousand lines."""
    assert MAX_FINDINGS + 1 == len(refusal("a: 1\n" * 9_000).splitlines())


def test_the_plain_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libyaml every plain word would be taken for a quoted one."""
    monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)
    text = "a: [1, 'x', true]\n"
    read = compose(text, "f")
    assert {"a": [1, "x", True]} == read.data
    assert 9 == read.inner["a", 1]


def test_errors_without_a_place_stand_in_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser's error that names no mark would end in a traceback."""

    def fails(*_: object, **__: object) -> None:
        raise yaml.MarkedYAMLError

    monkeypatch.setattr(yaml, "parse", lambda *_, **__: iter(fails, 0))
    assert "f:1:1: this is no YAML: unreadable" == refusal("a: 1")


def test_files_are_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    """A spec saved by an editor that writes a mark would have a strange first key."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert "a: 1" == read(path, "a.yaml")


def test_unreadable_paths_are_named(tmp_path: Path) -> None:
    """A folder or a path that is no path would end in a traceback."""
    with pytest.raises(UserError, match=r"x cannot be read: Is a directory; give the path of a YAML file"):
        read(tmp_path, "x")
    with pytest.raises(UserError, match=r"x cannot be read: embedded null byte"):
        read(Path("\0"), "x")
