"""Published traces of other forms: Mooncake, BurstGPT, ServeGen and our own; broken lines are named."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.trace_file import TraceColumns, read_trace
from fsm_spec.simulator.workload import Workload, parse_arrivals

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}',
    '{"timestamp": 27, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]}',
    '{"timestamp": 27, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}',
)
BURST_GPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "5,7,3.1,ChatGPT,472,18,490,Conversation log",
    "45.5,8,1.0,GPT-4,1087,230,1317,API log",
)


def read(path: Path, *lines: str) -> TraceColumns:
    """Write lines and read them as a trace."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_trace(path, 10_000)


def test_mooncake_keeps_its_hashes(tmp_path: Path) -> None:
    """Times are ms; full pages of equal blocks have equal identities, those of the last block too."""
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(MOONCAKE).encode()))
    requests = Workload(parse_arrivals(f"trace:{packed}")).generate()
    assert [0, 27_000_000, 27_000_000] == requests.arrival_ns.tolist()
    assert [1100, 1024, 600] == requests.prompt_tokens.tolist()
    prefixes = requests.prefixes
    assert prefixes is not None
    first, second, third = (prefixes.pages(i, 64, int(requests.prompt_tokens[i])).tolist() for i in range(3))
    assert (17, 16, 9) == (len(first), len(second), len(third))
    assert first[:16] == second
    assert first[:8] == third[:8]
    assert first[8] != third[8]
    with pytest.raises(UserError, match="do not divide"):
        prefixes.check(48)


def test_burst_gpt_is_read_with_and_without_sessions(tmp_path: Path) -> None:
    """Both published headers work; sessions are kept."""
    columns = read(tmp_path / "a.csv", *BURST_GPT)
    assert [0, 40_500_000_000] == columns.arrival_ns.tolist()
    assert ([472, 1087], [18, 230], [7, 8]) == (
        columns.prompt.tolist(),
        columns.output.tolist(),
        columns.session.tolist(),
    )
    plain = read(
        tmp_path / "b.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
    )
    assert [-1] == plain.session.tolist()


def test_our_own_form_takes_seconds(tmp_path: Path) -> None:
    """Three keys are enough; a session may stand beside them."""
    columns = read(
        tmp_path / "a.jsonl",
        '{"arrival_s": 1.5, "input": 10, "output": 2}',
        "",
        '{"arrival_s": 2, "input": 11, "output": 3, "session": 4}',
    )
    assert ([0, 500_000_000], [-1, 4]) == (columns.arrival_ns.tolist(), columns.session.tolist())


def test_servegen_draws_its_windows(tmp_path: Path) -> None:
    """Rates, families and histograms are those of the windows; the same seed gives the same requests."""
    trace = tmp_path / "one-trace.csv"
    trace.write_text("0,0,0,,0,0\n600,10,2,Gamma,0.25,0.4\n1200,5,1.5,Weibull,0.7,0.1\n", encoding="utf-8")
    histogram = {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{0: 0.5, 7: 0.5}"}
    (tmp_path / "one-dataset.json").write_text(json.dumps({"0": histogram}), encoding="utf-8")
    columns = read_trace(trace, 10_000, seed=1)
    late = columns.arrival_ns >= 600_000_000_000 - 1
    assert len(columns) == pytest.approx(9000, rel=0.1)
    assert late.sum() == pytest.approx(3000, rel=0.1)
    assert {100, 200} == set(columns.prompt.tolist())
    assert {1, 7} == set(columns.output.tolist())
    assert columns.arrival_ns.tobytes() == read_trace(trace, 10_000, seed=1).arrival_ns.tobytes()
    assert (np.diff(columns.arrival_ns) >= 0).all()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((*MOONCAKE, MOONCAKE[0]), r":4: its time lies before"),
        ((MOONCAKE[0].replace("1100", "-3"),), r':1: input_length "-3" is no number'),
        ((MOONCAKE[0].replace("1100", "0"),), r":1: input_length 0 lies outside"),
        ((MOONCAKE[0].replace(", 2]", "]"),), r":1: has 2 hash_ids, but 1100 tokens are 3 blocks"),
        ((MOONCAKE[0].replace("hash_ids", "hashes"),), r":1: has the keys hashes"),
        ((MOONCAKE[0], '{"arrival_s": 1, "input": 1, "output": 1}'), r":2: is of another form"),
        ((MOONCAKE[0], "{"), r":2: is no JSON"),
        (('{"arrival_s": -1, "input": 1, "output": 1}',), r':1: arrival_s "-1" is no time'),
        (('{"arrival_s": 1, "input": 1, "output": 1, "session": "x"}',), r':1: session "x" is no number'),
        ((BURST_GPT[0], BURST_GPT[1].replace(",18,", ",0,")), r":2: Response tokens 0 lies outside"),
        ((BURST_GPT[0], BURST_GPT[1].replace("5,7", "soon,7")), r':2: Timestamp "soon"'),
        (("0,5,1,Gamma,1,1", "0,5,1,Gamma,1,1"), r":2: its window does not start after"),
        (("0,5,1,Gamma,1,1", "600,-5,1,Gamma,1,1"), r":2: has a negative rate"),
        (("0,0,0,,0,0",), r"no window has a rate"),
        (("0,5,1,Gamma,1,1",), r"name it NAME-trace.csv"),
    ],
)
def test_broken_traces_are_named_by_line(tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    """Every fault names the file, the line and what is wrong."""
    with pytest.raises(UserError, match=words):
        read(tmp_path / "t.txt", *lines)


def test_files_that_are_no_traces_get_a_sentence(tmp_path: Path) -> None:
    """A broken archive and broken histograms are no traceback."""
    packed = tmp_path / "t.gz"
    packed.write_bytes(b"no gzip")
    with pytest.raises(UserError, match="is no gzip file"):
        read_trace(packed, 10)
    (tmp_path / "one-dataset.json").write_text('{"0": {"input_tokens": "{"}}', encoding="utf-8")
    with pytest.raises(UserError, match="does not map windows"):
        read(tmp_path / "one-trace.csv", "0,5,1,Gamma,1,1")
