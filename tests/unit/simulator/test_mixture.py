"""Acceptance that differs between requests and remembers: files, mixtures, and what traces record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.simulator.acceptance_file import load_mixture, read_acceptance
from fsm_spec.simulator.mixture import LEVELS, Mixture, TextProfile, class_means
from fsm_spec.simulator.places import AFTER_ALL, AFTER_REJECTION, AT_START, LASTS
from fsm_spec.simulator.recording import concentration_of

FILE = """
source: made for a test
profiles:
  - {name: code, rates: [0.9, 0.8, 0.7], after_rejection: [0.3, 0.2, 0.1], weight: 3}
  - {name: chat, rates: [0.5, 0.5, 0.5], concentration: 4}
"""
BASE = ["--model", "smollm2-135m", "--hardware", "h100", "--input", "16"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a file of profiles."""
    file = tmp_path / "profiles.yaml"
    file.write_text(FILE, encoding="utf-8")
    return file


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(application(), arguments)


@given(st.floats(0.1, 0.9), st.floats(0.5, 500))
def test_classes_keep_the_mean(rate: float, concentration: float) -> None:
    """The mean of all classes is the rate, they rise, and their variance is the beta's, less what lies within one."""
    means = class_means(rate, concentration, LEVELS)
    assert rate == pytest.approx(means.mean(), rel=1e-6)
    assert (np.diff(means) >= -1e-9).all()
    variance = rate * (1 - rate) / (concentration + 1)
    assert 0.8 * variance < means.var() <= variance * (1 + 1e-4)


def test_requests_belong_to_profiles_by_weight(path: Path) -> None:
    """Three of four requests are code; the class of a request is uniform; both depend on seed and request alone."""
    mixture = load_mixture(str(path), None, seed=1)
    kinds = mixture.kinds(np.arange(40_000))
    share = float((kinds < LEVELS).mean())
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 40_000)
    assert kinds[[5, 700]].tolist() == mixture.kinds([5, 700]).tolist()
    classes = np.bincount(kinds % LEVELS, minlength=LEVELS) / 40_000
    assert np.abs(classes * LEVELS - 1).max() < 0.25
    assert "profiles.yaml (code 75 %, chat 25 %, concentration 4)" == mixture.describe()
    only = load_mixture(str(path), "chat=2", seed=1)
    assert ["chat"] == [profile.name for profile in only.profiles]


def test_rates_follow_the_judgement_before() -> None:
    """A list for one judgement before replaces the usual one there only."""
    mixture = Mixture((TextProfile("a", (0.9, 0.5), after_rejection=(0.2, 0.1)),), "t")
    tails = mixture.tails(2)
    assert (LASTS, 2) == tails.shape
    assert tails[AT_START].tolist() == tails[AFTER_ALL].tolist() == pytest.approx([0.9, 0.45])
    assert tails[AFTER_REJECTION].tolist() == pytest.approx([0.2, 0.02])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: []", "source"),
        ("source: x\nprofiles: [{name: a, rates: [1.5]}]", "less than or equal to 1"),
        ("source: x\nprofiles: [{name: a, rates: [0.5]}, {name: a, rates: [0.5]}]", "stands there twice"),
        ("source: x\nprofiles: [{name: a, rates: [0.5], concentration: 0}]", "greater than 0"),
        ("a: [", "no YAML"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """What is wrong is named with its place in the file."""
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_acceptance(str(file))
    with pytest.raises(UserError, match="cannot be read"):
        read_acceptance(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--acceptance", "FILE", "--accept", "0.5,0.5,0.5"], "both say how many drafts"),
        (["--acceptance", "FILE", "--set", "b=3"], "the profile code has 3 rates, but uno_linear judges 2"),
        (["--acceptance", "FILE", "--mix", "cod=1"], 'did you mean "code"'),
        (["--acceptance", "FILE", "--mix", "code=-1"], "no share above 0"),
        (["--acceptance", "isd=FILE"], "isd is not among uno_linear"),
        (["--accept", "geometric:0.5", "--mix", "code=1"], "add --acceptance"),
        (["--accept", "geometric:0.5", "--concentration", "0"], "no number above 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(path: Path, arguments: list[str], words: str) -> None:
    """Two laws at once, other parameters, unknown profiles and bad weights have their sentences."""
    given_ = [word.replace("FILE", str(path)) for word in arguments]
    load = ["--arrivals", "closed:2", "--output", "8", "--requests", "4"]
    result = run("simulate", "uno_linear", *BASE, *load, *given_)
    assert 2 == result.exit_code
    assert words in result.stderr


def test_traces_give_back_the_profiles_they_were_drawn_from(path: Path, tmp_path: Path) -> None:
    """A simulated trace records the rates by position and by the judgement before, within chance."""
    trace, out = tmp_path / "run.jsonl", tmp_path / "recorded.yaml"
    load = ["--arrivals", "closed:40", "--output", "100", "--requests", "40", "--acceptance", str(path)]
    done = run("simulate", "uno_linear", *BASE, *load, "--mix", "code", "--trace", str(trace))
    assert 0 == done.exit_code, done.output
    recorded = run("acceptance", f"code={trace}", "--out", str(out))
    assert 0 == recorded.exit_code, recorded.output
    (entry,) = read_acceptance(str(out)).profiles
    assert 40 == entry.requests
    for rates, wanted in ((entry.rates, (0.9, 0.8, 0.7)), (entry.after_rejection, (0.3, 0.2, 0.1))):
        assert rates == pytest.approx(wanted, abs=0.2)
    assert entry.rates[0] - entry.after_rejection[0] > 0.4
    again = run("simulate", "uno_linear", *BASE, *load[:-1], str(out))
    assert 0 == again.exit_code, again.output
    plain = run("simulate", "ar", *BASE, *load[:-2], "--trace", str(trace))
    assert 0 == plain.exit_code
    refused = run("acceptance", str(trace))
    assert "ar judges no drafts" in refused.stderr


def test_what_a_trace_knows_of_lookups_is_recorded(tmp_path: Path) -> None:
    """The share of lookups that found drafts stands in the profile and is taken; few judgements are told."""
    trace, out = tmp_path / "run.jsonl", tmp_path / "recorded.yaml"
    load = ["--arrivals", "closed:4", "--output", "60", "--requests", "4"]
    rates = ["--accept", "geometric:0.8", "--lookup", "0.4"]
    done = run("simulate", "ngram", *BASE, *load, *rates, "--trace", str(trace))
    assert 0 == done.exit_code, done.output
    recorded = run("acceptance", f"few={trace}", "--out", str(out))
    (entry,) = read_acceptance(str(out)).profiles
    assert entry.lookups
    assert entry.lookup == pytest.approx(0.4, abs=0.15)
    assert len(entry.rates) == len(entry.judged)
    assert f"few: rates rest on {entry.judged[0]}, " in recorded.stderr
    again = run("simulate", "ngram", *BASE, *load, "--acceptance", str(out), "--json")
    assert f"{entry.lookup:g}" == json.loads(again.stdout)["scenario"]["lookup"]


@pytest.mark.parametrize("concentration", [2.0, 20.0])
def test_the_spread_of_requests_is_found(concentration: float) -> None:
    """Moments of beta-binomial counts give the concentration back, within a third; equal requests have none."""
    random = np.random.default_rng(1)
    rate, judged = 0.7, np.full(3_000, 200)
    shares = random.beta(rate * concentration, (1 - rate) * concentration, 3_000)
    counts = [
        (np.array([n]), np.array([random.binomial(n, share)]))
        for n, share in zip(judged, shares, strict=True)
    ]
    found = concentration_of(counts, np.array([rate]))
    assert found is not None
    assert concentration == pytest.approx(found, rel=0.33)
    equal = [(np.array([200]), np.array([140])) for _ in range(20)]
    assert concentration_of(equal, np.array([0.7])) is None
    assert concentration_of(counts[:3], np.array([rate])) is None
