"""Findings: one line each, and the nearest right word."""

from __future__ import annotations

from fsm_spec.errors import SpecError
from fsm_spec.language.findings import Finding, SpecFindings, closest, nearest, path_text, quoted


def test_a_finding_is_one_line() -> None:
    """Editors and CI logs would not find place and sentence in one line."""
    finding = Finding("a.yaml", 19, 14, 'check.always["two\\nlines"]', "is\n  wrong")
    assert 'a.yaml:19:14: check.always["two\\nlines"]: is wrong' == str(finding)
    assert "a.yaml:1:1: empty" == str(Finding("a.yaml", 1, 1, "", "empty"))


def test_findings_raise_together() -> None:
    """A second fault of a file would be seen only after the first is mended."""
    error = SpecFindings([Finding("a", 1, 2, "p", "x"), Finding("a", 2, 1, "q", "y")])
    assert isinstance(error, SpecError)
    assert "a:1:2: p: x\na:2:1: q: y" == str(error)
    assert 2 == len(error.findings)


def test_paths_read_like_the_file() -> None:
    """A path would not lead to its node."""
    assert "transitions[2].emit[0]" == path_text(("transitions", 2, "emit", 0))
    assert 'check.always["a b"]' == path_text(("check", "always", "a b"))
    assert '["a\\nb"].c-d' == path_text(("a\nb", "c-d"))


def test_nearest_words() -> None:
    """A misspelt word would be answered without the right one."""
    assert '; did you mean "verify"?' == nearest("Verfiy", ["draft", "verify"])
    assert "; known: draft, verify" == nearest("x", ["draft", "verify", "draft"])
    assert "; known: " + ", ".join(f"n{index}" for index in range(12)) + ", ..." == nearest(
        "x", [f"n{index}" for index in range(13)]
    )
    assert "" == nearest("x", [])
    assert closest("xyz", ["abc"]) is None


def test_long_values_are_cut() -> None:
    """A megabyte of text would be printed back."""
    assert f'"{"a" * 60}..."' == quoted("a" * 100)
    assert "[1, 2]" == quoted([1, 2])
