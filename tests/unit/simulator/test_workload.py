"""Workloads: options, seeds, closed loops and trace files with the number of a broken line."""

from pathlib import Path

import numpy as np
import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.workload import (
    ON_FINISH,
    Requests,
    Workload,
    parse_arrivals,
    parse_lengths,
    parse_sessions,
)

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0319600,110,27
"""


def make(arrivals: str, requests: int | None = 1000, seed: int = 1, prompt: str = "1024") -> Requests:
    """Return the requests of a workload with 512 output tokens."""
    lengths = parse_lengths(prompt, "--input"), parse_lengths("512", "--output")
    return Workload(parse_arrivals(arrivals), *lengths, requests, seed).generate()


def test_poisson_has_its_rate_and_seed() -> None:
    """The mean gap lies within 5 standard errors; the same seed gives the same bytes, another does not."""
    first, again, other = make("poisson:5"), make("poisson:5"), make("poisson:5", seed=2)
    assert first.arrival_ns.tobytes() == again.arrival_ns.tobytes()
    assert first.arrival_ns.tobytes() != other.arrival_ns.tobytes()
    gaps = np.diff(first.arrival_ns) / 1e9
    assert (gaps >= 0).all()
    assert abs(gaps.mean() - 0.2) <= 5 * 0.2 / np.sqrt(len(gaps))
    assert {1024} == set(first.prompt_tokens.tolist())


def test_lengths_do_not_shift_arrivals() -> None:
    """Each column has a random stream of its own, so that comparisons change one thing at a time."""
    fixed, drawn = make("poisson:5"), make("poisson:5", prompt="uniform:10:20")
    assert fixed.arrival_ns.tobytes() == drawn.arrival_ns.tobytes()
    assert (10, 20) == (drawn.prompt_tokens.min(), drawn.prompt_tokens.max())


def test_constant_and_closed_arrivals() -> None:
    """Constant gaps are exact; a closed loop starts its concurrency at once and the rest on finishes."""
    assert [0, 250_000_000, 500_000_000] == make("constant:4", 3).arrival_ns.tolist()
    closed = make("closed:2", 3)
    assert [0, 0, ON_FINISH] == closed.arrival_ns.tolist()
    assert 2 == closed.concurrency
    assert 3 == make("closed:8", 3).concurrency
    assert [(0, 1024, 512), (0, 1024, 512), (ON_FINISH, 1024, 512)] == [tuple(request) for request in closed]


def test_lognormal_lengths_have_their_mean_and_cv() -> None:
    """Mean and coefficient of variation are those of the lengths, not of their logarithm."""
    lengths = make("poisson:5", 100_000, prompt="lognormal:1000:0.5").prompt_tokens
    assert lengths.mean() == pytest.approx(1000, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(0.5, rel=0.02)
    assert lengths.min() >= 1


@pytest.mark.parametrize(
    "text",
    [
        "poisson:5",
        "closed:32",
        "constant:0.5",
        "trace:file.csv",
        "trace:file.csv:speed=2:sample=0.1",
        "gamma:5:cv=2",
        "weibull:5:cv=0.5",
        "ramp:1:10:100",
        "burst:1:20:60:10",
    ],
)
def test_options_describe_themselves(text: str) -> None:
    """A report names the option that gives the same workload; a trace without its folder."""
    assert parse_arrivals(text).describe() == text
    assert parse_arrivals("trace:some/file.csv").describe() == "trace:file.csv"
    assert ["512", "uniform:1:9"] == [
        parse_lengths(word, "--input").describe() for word in ("512", "uniform:1:9")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "poisson",
        "poisson:0",
        "poisson:-1",
        "poisson:x",
        "poisson:inf",
        "closed:0",
        "closed:1.5",
        "trace:",
        "burst:3",
        "burst:1:20:10:10",
        "gamma:5",
        "gamma:5:cv=0",
        "weibull:5:cv=1:2",
        "poisson:5:cv=1",
        "ramp:1:2",
        "ramp:1:2:0",
        "trace:file:sample=2",
        "trace:file:speed=0",
    ],
)
def test_bad_arrivals_get_a_sentence(text: str) -> None:
    """Every bad option names itself."""
    with pytest.raises(UserError, match="--arrivals"):
        parse_arrivals(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-5",
        "1.5",
        "nan",
        "1e9",
        "uniform:9:1",
        "uniform:1",
        "lognormal:0:1",
        "lognormal:10:0",
        "zipf:1",
        "gamma:10:-1",
        "choice:1,x",
        "choice:0",
    ],
)
def test_bad_lengths_get_a_sentence(text: str) -> None:
    """Every bad option names itself."""
    with pytest.raises(UserError, match="--output"):
        parse_lengths(text, "--output")


def test_missing_and_ineffective_options_are_refused(tmp_path: Path) -> None:
    """Nothing is defaulted silently, and an option without effect is an error."""
    fixed = parse_lengths("8", "--input")
    with pytest.raises(UserError, match="need --output and --requests"):
        Workload(parse_arrivals("poisson:5"), fixed)
    with pytest.raises(UserError, match="--input would have no effect"):
        Workload(parse_arrivals(f"trace:{tmp_path}"), fixed)
    with pytest.raises(UserError, match="--requests 0 simulates nothing"):
        Workload(parse_arrivals("poisson:5"), fixed, fixed, 0)
    with pytest.raises(UserError, match="more than a run holds; give at most 10,000,000"):
        Workload(parse_arrivals("poisson:5"), fixed, fixed, 99_999_999_999_999)
    with pytest.raises(UserError, match="--seed -1"):
        Workload(parse_arrivals("poisson:5"), fixed, fixed, 1, -1)


def load(path: Path, text: str, requests: int | None = None) -> Requests:
    """Write a trace and load it."""
    path.write_text(text, encoding="utf-8")
    return Workload(parse_arrivals(f"trace:{path}"), requests=requests).generate()


def test_trace_is_read_exactly(tmp_path: Path) -> None:
    """Times are integers: 52 ms apart to the nanosecond; both years' forms of time work."""
    requests = load(tmp_path / "trace.csv", TRACE)
    assert [(0, 4808, 10), (52_000_000, 3180, 8), (52_000_000, 110, 27)] == [tuple(row) for row in requests]
    header = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens"
    later = f"{header}\n2024-05-10 00:00:00+00:00,1,2\n2024-05-10 00:00:00.009930+00:00,3,4\n"
    assert [0, 9_930_000] == load(tmp_path / "later.csv", later).arrival_ns.tolist()
    assert 2 == len(load(tmp_path / "trace.csv", TRACE, 2))
    with pytest.raises(UserError, match="holds 3 requests, fewer than --requests 4"):
        load(tmp_path / "trace.csv", TRACE, 4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2023-11-16 18:17:05,5", "has 2 fields instead of 3"),
        ("yesterday,5,5", 'TIMESTAMP "yesterday" is no time'),
        ("2023-11-16 18:17:05,-5,5", 'ContextTokens "-5" is no number of tokens'),
        ("2023-11-16 18:17:05,5,0", "GeneratedTokens 0 lies outside 1 to"),
        ("2023-11-16 18:17:05,5,99999999999999999999", "lies outside"),
        ("2023-11-16 18:17:01,5,5", "its time lies before that of the line above"),
    ],
)
def test_broken_line_is_named_by_number(tmp_path: Path, line: str, words: str) -> None:
    """The first broken line is named, counted from 1 with the header."""
    with pytest.raises(UserError, match=rf"trace\.csv:5: .*{words}"):
        load(tmp_path / "trace.csv", f"{TRACE}{line}\n{line}\n")


def test_unreadable_traces_get_a_sentence(tmp_path: Path) -> None:
    """A missing, empty, foreign or binary file is no traceback."""
    with pytest.raises(UserError, match="cannot be read"):
        Workload(parse_arrivals(f"trace:{tmp_path / 'none.csv'}")).generate()
    with pytest.raises(UserError, match="holds no request"):
        load(tmp_path / "empty.csv", TRACE.partition("\n")[0] + "\n")
    with pytest.raises(UserError, match=":1: the first line is not TIMESTAMP"):
        load(tmp_path / "foreign.csv", "a,b\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="not UTF-8"):
        Workload(parse_arrivals(f"trace:{tmp_path / 'binary.csv'}")).generate()


@pytest.mark.parametrize(
    ("arrivals", "rate", "variation"),
    [
        ("gamma:5:cv=2", 5.0, 2.0),
        ("weibull:5:cv=2", 5.0, 2.0),
        ("weibull:5:cv=0.5", 5.0, 0.5),
        ("burst:1:20:60:10", 25 / 6, None),
    ],
)
def test_gaps_have_their_rate_and_variation(arrivals: str, rate: float, variation: float | None) -> None:
    """Mean rate and coefficient of variation come out as written; a burst has the mean of its period."""
    gaps = np.diff(make(arrivals, 20_000).arrival_ns) / 1e9
    assert 1 / gaps.mean() == pytest.approx(rate, rel=0.05)
    if variation is not None:
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_ramp_and_burst_follow_their_rate() -> None:
    """A ramp has half its final rate half way; bursts hold most of a period's requests in their seconds."""
    ramp = make("ramp:0.001:100:100", 20_000).arrival_ns / 1e9
    assert (ramp < 50).sum() == pytest.approx(1250, rel=0.1)
    assert (ramp < 100).sum() == pytest.approx(5000, rel=0.05)
    assert 1 / np.diff(ramp[ramp > 100]).mean() == pytest.approx(100, rel=0.05)
    burst = make("burst:1:20:60:10", 5000).arrival_ns / 1e9 % 60
    assert (burst >= 50).mean() == pytest.approx(0.8, rel=0.05)


def test_a_trace_is_thinned_and_sped_up_by_seed(tmp_path: Path) -> None:
    """A sample keeps its share, the same one for one seed; speed divides times."""
    lines = "".join(f'{{"arrival_s": {i}, "input": {i + 1}, "output": 2}}\n' for i in range(1000))
    path = tmp_path / "trace.jsonl"
    path.write_text(lines, encoding="utf-8")

    def draw(seed: int) -> Requests:
        return Workload(parse_arrivals(f"trace:{path}:speed=2:sample=0.1"), seed=seed).generate()

    first = draw(1)
    assert first.prompt_tokens.tolist() == draw(1).prompt_tokens.tolist() != draw(2).prompt_tokens.tolist()
    assert 70 <= len(first) <= 130
    assert (
        first.arrival_ns.tolist() == ((first.prompt_tokens - first.prompt_tokens[0]) * 500_000_000).tolist()
    )
    with pytest.raises(UserError, match="keeps no request"):
        Workload(parse_arrivals(f"trace:{path}:sample=0.000001")).generate()


def test_sessions_repeat_the_text_before_them() -> None:
    """A turn's prompt is the shared text and all turns before it; identities of its full pages agree with theirs."""
    fixed = parse_lengths("100", "--input"), parse_lengths("28", "--output")
    sessions = parse_sessions("2:64", "3:10")
    requests = Workload(parse_arrivals("constant:0.001"), *fixed, 6, 1, sessions).generate()
    assert [164, 292, 420, 164, 292, 420] == requests.prompt_tokens.tolist()
    assert (np.diff(requests.arrival_ns) >= 0).all()
    prefixes = requests.prefixes
    assert prefixes is not None
    pages = [prefixes.pages(i, 16, int(requests.prompt_tokens[i])) for i in range(6)]
    assert [10, 18, 26] == [len(page) for page in pages[:3]]
    assert pages[0].tolist() == pages[1][:10].tolist()
    assert not set(pages[0][4:].tolist()) & set(pages[3].tolist())
    same = prefixes.group[0] == prefixes.group[3]
    assert same == (pages[0][:4].tolist() == pages[3][:4].tolist())


def test_sessions_are_refused_where_they_mean_nothing() -> None:
    """Turns need a clock, traces hold their own, and broken forms get a sentence."""
    fixed = parse_lengths("8", "--input"), parse_lengths("8", "--output")
    with pytest.raises(UserError, match="--turns says when"):
        Workload(parse_arrivals("closed:2"), *fixed, 4, 1, parse_sessions(None, "2:1"))
    with pytest.raises(UserError, match="would change what a trace holds"):
        Workload(parse_arrivals("trace:x"), sessions=parse_sessions("2:64", None))
    for shared, turns in (("2", None), ("0:5", None), (None, "1:5"), (None, "2:0"), (None, "x:1")):
        with pytest.raises(UserError, match=r"--(shared-prefix|turns)"):
            parse_sessions(shared, turns)


def test_lengths_from_a_file_and_a_choice(tmp_path: Path) -> None:
    """Every drawn length is one of those given; a broken line is named."""
    path = tmp_path / "lengths.txt"
    path.write_text("5\n\n7\n", encoding="utf-8")
    assert {5, 7} == set(make("poisson:5", 100, prompt=f"file:{path}").prompt_tokens.tolist())
    assert {128, 512} == set(make("poisson:5", 100, prompt="choice:128,512").prompt_tokens.tolist())
    path.write_text("5\n-1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r'lengths.txt:2: "-1" is no number'):
        parse_lengths(f"file:{path}", "--input")
    with pytest.raises(UserError, match="cannot be read"):
        parse_lengths(f"file:{tmp_path}", "--input")
