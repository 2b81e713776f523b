"""The command line: exit codes, one JSON value, one sentence for a mistake, and a fast start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fsm_spec import cli, command
from fsm_spec.checker import verdict
from fsm_spec.cli_spec import settings_of
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.trace import TraceWriter, header

FAULTY = "spec: faulty\nstats: {}\ncontract: pendin\n"


class Result:
    """Hold what a command line gave: exit code, standard output and error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever JSON was printed
        """Read standard output as exactly one JSON value."""
        return json.loads(self.out)


def run(*args: str) -> Result:
    """Run a command line in this process, with the core's commands alone."""
    done = CliRunner().invoke(cli.application([]), list(args))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    """Write a spec with several mistakes."""
    path = tmp_path / "faulty.yaml"
    path.write_text(FAULTY)
    return str(path)


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    """Write a spec whose property does not hold."""
    path = tmp_path / "wrong.yaml"
    text = load("ar").text.replace("emitted > 1", "emitted > 99")
    path.write_text(text.replace("kv == prompt + emitted - 1", "emitted < 3"))
    return str(path)


def test_check_proves() -> None:
    """A spec that holds exits 0 and prints verdict, bounds, counts and every property."""
    done = run("check", "ar")
    assert done.code == 0
    assert done.out.startswith("ar: proved  15 properties, 2,869 states, 19,322 transitions, ")
    expected = """\
  bounds: 1, 2 or 3 requests; policies reserve, holdback;
          3 or 8 pages of 2 slots: one longest case for 1 or 2 requests, all longest cases less a page for more;
          prompts of 1 to 2 tokens, limits 0 to 4 (one request alone); 0, 2 or 4;
          abort on; chunks, lag, prefix off; requests interchangeable
"""
    assert expected in done.out
    assert "  proved       built in    emitted never passes the limit\n" in done.out
    assert "" == done.err


def test_check_refutes(wrong: str) -> None:
    """A refuted property exits 1 with its counterexample; the steps are printed once."""
    done = run("check", wrong)
    assert done.code == 1
    assert "refuted the newest token alone has no KV  (always)" in done.out
    assert "emitted 2 -> 3, kv 2 -> 3, pages 1 -> 2  2 of 3  line 19\n" in done.out
    assert "broken in step 4: request 0: prompt = 1, limit = 4, emitted = 3, kv = 3\n" in done.out
    replay = "--requests 1 --pages 3 --page-size 2 --policy reserve --trace found.json; fsm-spec replay found.json\n"
    assert f"  replay: fsm-spec check {wrong} {replay}" in done.out


def test_check_of_what_never_happens(tmp_path: Path) -> None:
    """A `sometimes` that never happens is a refutation without steps."""
    path = tmp_path / "idle.yaml"
    path.write_text(load("ar").text.replace("emitted > 1", "emitted > 99"))
    done = run("check", str(path))
    assert done.code == 1
    assert (
        "refuted a token follows the first  (sometimes)\n  it never happens within the bounds\n" in done.out
    )


def test_check_repeats_no_steps(tmp_path: Path) -> None:
    """Two properties broken by the same steps share one listing."""
    path = tmp_path / "twice.yaml"
    text = load("ar").text.replace(
        '"kv == prompt + emitted - 1"', '"emitted < 2", "it ends early": "limit > emitted and emitted < 2"'
    )
    path.write_text(text)
    done = run("check", str(path))
    assert done.code == 1
    assert "by the same steps as above; broken in step" in done.out


def test_check_undetermined() -> None:
    """A search that gives up exits 3 and says what may help."""
    done = run("check", "ngram", "--max-states", "20")
    assert done.code == 3
    assert "given up" in done.out
    told = "  Given up: all states fewer than 1 move from the start are covered; a larger --max-states or --max-memory"
    assert f"{told} may decide more.\n" in done.out


def test_check_lists_findings(faulty: str) -> None:
    """A faulty file exits 2 with one unwrapped line a finding on standard output."""
    done = run("check", faulty)
    assert done.code == 2
    lines = done.out.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith(f"{faulty}:") for line in lines)
    assert any('did you mean "pending"?' in line for line in lines)


def test_check_of_several_files(faulty: str, wrong: str) -> None:
    """Over several files 2 wins over 1, 1 over 3, 3 over 0; the rest is checked all the same."""
    assert run("check", "ar", "linear_spec").code == 0
    done = run("check", "ar", wrong, "--json")
    assert done.code == 1
    assert ["proved", "refuted"] == [each["verdict"] for each in done.value]
    done = run("check", wrong, faulty, "ar", "missing", "--json")
    assert done.code == 2
    assert ["refuted", "faulty", "proved", "faulty"] == [each["verdict"] for each in done.value]
    assert "no spec is called" in done.value[3]["error"]
    assert run("check", "isd", wrong, "--max-states", "200").code == 1
    assert run("check", "isd", "ar", "--max-states", "200").code == 3


def test_check_json(faulty: str) -> None:
    """`--json` prints one value also where the exit code is not 0: an object for one spec."""
    done = run("check", "uno_linear", "--json")
    assert {
        "verdict",
        "states",
        "transitions",
        "depth",
        "seconds",
        "liveness_seconds",
        "compile_seconds",
        "properties",
        "bounds",
    } <= done.value.keys()
    done = run("check", faulty, "--json")
    assert done.code == 2
    assert {"file", "line", "column", "path", "message"} == done.value["findings"][0].keys()
    assert "" == done.err


def test_check_settings() -> None:
    """`--set` reaches the specs that know the parameter, and is refused where none does."""
    done = run("check", "linear_spec", "--set", "b=3", "--max-states", "9", "--json")
    assert {"b": 3} == done.value["bounds"]["params"]
    assert run("check", "linear_spec", "ar", "--set", "b=2").code == 0
    done = run("check", "linear_spec", "--set", "B=3", "--max-states", "9", "--json")
    assert {"b": 3} == done.value["bounds"]["params"]
    for options, sentence in {
        ("--set", "bb=3"): "uno_linear: no parameter is called 'bb'; did you mean \"b\"?\n",
        ("--set", "b=99"): "uno_linear: b=99 is out of range; choose 2 to 16\n",
        ("--set", "b=3", "--set", "B=4"): "--set B=4: b was set to 3 before; give one value\n",
        ("--requests", "0"): "requests must be at least 1, not 0\n",
        (
            "--requests",
            "99",
        ): "99 requests of 103 local states do not pack into one word; 6 at most, or smaller parameters\n",
        ("--set", "b"): "--set b is no NAME=VALUE; write, for example, --set b=8\n",
        ("--set", "b=x"): "--set b=x: 'x' is no integer; write, for example, --set b=8\n",
        (
            "--policy",
            "hold",
        ): "no policy is called 'hold' and no such file exists; did you mean \"holdback\"?\n",
    }.items():
        done = run("check", "uno_linear", *options)
        assert (2, sentence) == (done.code, done.err)
        assert "" == done.out


def test_check_policies() -> None:
    """A named policy replaces the two usual ones; greedy admission deadlocks."""
    done = run("check", "ar", "--policy", "greedy", "--policy", "preempt")
    assert done.code == 1
    assert "deadlock: no move changes anything any more" in done.out


def test_check_of_an_abstract_model(tmp_path: Path) -> None:
    """Without forwards the bounds say that there is neither pool nor scheduler."""
    path = tmp_path / "pair.yaml"
    path.write_text(
        "spec: pair\nstates:\n  a: {phase: draft, round: true, start: true, kv: {}}\n"
        "  b: {phase: commit, kv: {}, ignore: [go]}\nevents: {go: {}}\ntransitions: [{from: a, on: go, to: b}]\n"
        "check: {eventually: b}\n"
    )
    done = run("check", str(path))
    assert done.code == 0, done.out
    assert (
        "single events of each, interleaved;\n          abort, chunks, lag, prefix off; requests interchangeable\n"
        in done.out
    )


def test_check_of_several_specs_fits_one_screen() -> None:
    """Several specs take a line each; what they share is said once."""
    done = run("check", "ar", "isd", "linear_spec")
    assert done.code == 0
    lines = done.out.splitlines()
    assert 8 == len(lines)
    assert max(map(len, lines)) <= 120
    assert ["spec", "verdict", "properties", "states"] == lines[0].split()[:4]
    assert ["isd", "proved", "15", "5,058", "40,352", "8"] == lines[2].split()[:6]
    assert "bounds: 1, 2 or 3 requests; policies reserve, holdback;" == lines[4]
    assert "        pages of 2 slots: one longest case for 1 or 2 requests" in lines[5]


def test_check_of_several_specs_names_faulty_ones(faulty: str) -> None:
    """A faulty file has its line among the others, and its findings behind them."""
    done = run("check", "ar", faulty)
    assert done.code == 2
    assert [faulty, "faulty"] == done.out.splitlines()[2].split()
    assert f"\n{faulty}:1:" in done.out or f"\n{faulty}:2:" in done.out
    done = run("check", faulty, faulty, "missing")
    assert done.code == 2
    assert "bounds" not in done.out


def test_the_command_that_replays_repeats_the_question() -> None:
    """Options that change what is searched stand in the command; so do parameters."""
    done = run(
        "check", "linear_spec", "--policy", "greedy", "--no-symmetry", "--no-abort", "--chunks", "--lag", "1",
        "--set", "b=3", "--requests", "2", "--pages", "6",
    )  # fmt: skip
    assert done.code == 1
    command = "fsm-spec check linear_spec --requests 2 --pages 6 --page-size 2 --policy greedy"
    assert f"  replay: {command} --no-symmetry --no-abort --chunks --lag 1 --set b=3 --trace" in done.out


def test_check_says_which_freedoms_were_on() -> None:
    """Abort, chunks, lag and symmetry are listed as they were."""
    done = run(
        "check", "ar", "--no-abort", "--chunks", "--no-symmetry", "--policy", "reserve", "--requests", "1"
    )
    assert "chunks on; abort, lag, prefix off; requests told apart\n" in done.out
    assert "1 request; " in done.out


def test_counterexample_files(wrong: str, tmp_path: Path) -> None:
    """A counterexample is written for replay, as a diagram and as a test that passes; all properties as JUnit XML."""
    names = ("found.json", "found.mmd", "test_found.py", "found.xml")
    trace, diagram, test, xml = (str(tmp_path / name) for name in names)
    files = ["--trace", trace, "--sequence", diagram, "--pytest", test, "--junit", xml]
    done = run("check", wrong, *files)
    assert done.code == 1
    assert f"  replay: fsm-spec replay {trace}\n" in done.out
    assert f"wrote {trace}: the newest token alone has no KV\n" in done.out
    replayed = run("replay", trace)
    assert replayed.code == 0
    assert replayed.out.startswith(
        "the newest token alone has no KV: refuted; 1 request, policy reserve, 3 pages"
    )
    assert "broken in step 4" in replayed.out
    assert 5 == len(run("replay", trace, "--json").value["steps"])
    assert run("replay", trace, "--spec", wrong).code == 0
    other = run("replay", trace, "--spec", "isd")
    assert other.code == 2
    assert other.err.startswith(f"{trace}: isd has digest ")
    assert Path(diagram).read_text().startswith("sequenceDiagram\n")
    assert '<testsuite name="' in Path(xml).read_text()
    case = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "1 passed" in case.stdout, case.stdout


def test_reports_without_a_counterexample(tmp_path: Path) -> None:
    """Where nothing is refuted no counterexample is written, and that is said; a missing folder is refused."""
    trace = tmp_path / "found.json"
    done = run("check", "ar", "--trace", str(trace))
    assert done.code == 0
    assert f"nothing is refuted by steps: {trace} not written\n" in done.out
    assert not trace.exists()
    done = run("check", "ar", "--junit", str(tmp_path / "no" / "ar.xml"))
    assert done.code == 2
    assert "cannot be written" in done.err


def test_settings_are_read() -> None:
    """Names and values of `--set` lose their spaces; a contradiction is refused."""
    assert {} == settings_of(None)
    assert {"b": 4, "k": -1} == settings_of(["b = 4", "k=-1", "b=4"])
    with pytest.raises(UserError, match="b was set to 4 before"):
        settings_of(["b=4", "b=5"])
    with pytest.raises(UserError, match="is no integer"):
        settings_of(["b=" + "9" * 5000])
    with pytest.raises(UserError, match="is no NAME=VALUE"):
        settings_of(["=5"])


@pytest.mark.parametrize(
    ("form", "start"),
    [("text", "ar  table "), ("mermaid", "stateDiagram-v2"), ("dot", "digraph ar {"), ("svg", "<svg ")],
)
def test_show(form: str, start: str, tmp_path: Path) -> None:
    """Every form goes to standard output or to a file."""
    done = run("show", "ar", "--format", form)
    assert done.code == 0
    assert done.out.startswith(start)
    path = tmp_path / "out"
    assert "" == run("show", "ar", "-f", form, "-o", str(path)).out
    assert done.out == path.read_text(encoding="utf-8")


def test_show_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal the same text is shown in colour."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    command.show("ar", "text", {}, None, masks=False)
    assert "forward decode: causal, 1 row" in capsys.readouterr().out


def test_show_settings_and_mistakes(tmp_path: Path, faulty: str) -> None:
    """A mistake is one sentence, or the findings of the file; never a traceback."""
    assert "n = 2 (2 to 16)" in run("show", "isd", "--set", "n=2").out
    done = run("show", "isd", "--set", "n=1")
    assert (2, "isd: n=1 is out of range; choose 2 to 16\n") == (done.code, done.err)
    done = run("show", "ar", "-o", str(tmp_path / "missing" / "out"))
    assert done.code == 2
    assert done.err.endswith("cannot be written: No such file or directory; give another place\n")
    done = run("show", faulty)
    assert done.code == 2
    assert all(line.startswith(f"{faulty}:") for line in done.err.splitlines())
    assert run("show", "ar", "--format", "png").code == 2


def test_export() -> None:
    """The table as JSON has its digest, and a line for every row."""
    value = run("export", "uno_linear", "--set", "b=3").value
    assert {"b": 3} == value["params"]
    assert len(value["rows"]) == len(value["lines"])
    assert 64 == len(value["digest"])


def test_replay(tmp_path: Path) -> None:
    """A trace that its table allows is summed up; a broken one exits 2 with the line."""
    table = command.table_of(load("ar"), {})
    path = tmp_path / "trace.jsonl"
    with path.open("w") as out:
        TraceWriter(out, header(table, Policy(), Pool(4, 2), load("ar").text, "simulator"))
    done = run("replay", str(path))
    assert done.code == 0
    assert done.out.startswith(f"{path}: every step is allowed by ar (table {table.digest[:12]})\n")
    assert "allowed" == run("replay", str(path), "--json").value["verdict"]
    path.write_text("nonsense\n")
    done = run("replay", str(path), "--json")
    assert done.code == 2
    assert f"{path}:1: this line is no JSON record" in done.value["error"]


def test_schema(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The committed schema is compared or written."""
    assert run("schema", "--check").out.endswith("schema.json is up to date\n")
    target = tmp_path / "schema.json"
    monkeypatch.setattr("fsm_spec.language.schema.schema_path", lambda: target)
    assert f"{target}\n" == run("schema").out
    target.write_text("{}")
    assert run("schema", "--check").code == 2


def test_specs() -> None:
    """The shipped specs are listed with a sentence each."""
    done = run("specs")
    assert done.out.splitlines()[0].split() == ["spec", "lossless", "about"]
    assert re.search(r"\nar +sampling  Plain autoregressive decoding", done.out)
    assert {"ar", "isd"} <= {entry["name"] for entry in run("specs", "--json").value}


def test_version_and_help() -> None:
    """The version and every command are named."""
    assert run("--version").out.startswith("fsm-spec ")
    assert {"check", "show", "export", "replay", "schema", "specs"} <= set(run("--help").out.split())


def test_usage_errors_keep_json_whole() -> None:
    """A usage error under `--json` still prints one value."""
    done = run("check", "--json")
    assert done.code == 2
    assert done.value["error"].startswith("no spec is named; name a spec file, or a shipped spec")
    assert [run(command).err for command in ("check", "show", "export")] == [f"{done.value['error']}\n"] * 3
    assert run("nonsense").code == 2


def layer(name: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """Make an installed layer of a few lines."""
    (folder / f"layer_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return EntryPoint(name, f"layer_{name}:register", cli.LAYERS)


def test_layers_are_found_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layer adds its commands; one that is not installed names the command that installs it."""
    good = "def register(app):\n    @app.command()\n    def hello():\n        print('hello')\n"
    late = "def register(app):\n    @app.command()\n    def late():\n        import safetensors_missing\n"
    entries = [
        layer("hello", good, tmp_path, monkeypatch),
        layer("late", late, tmp_path, monkeypatch),
        layer("draw", "import torch_absent\n", tmp_path, monkeypatch),
        layer("serve", "import fsm_spec.absent\n", tmp_path, monkeypatch),
    ]
    app = cli.application(entries)
    runner = CliRunner()
    assert "hello\n" == runner.invoke(app, ["hello"]).stdout
    done = runner.invoke(app, ["draw", "--any", "option"])
    assert (2, "this needs torch_absent, which is not installed; run: pip install torch_absent\n") == (
        done.exit_code,
        done.stderr,
    )
    done = runner.invoke(app, ["serve"])
    assert "this part is not installed; run: pip install 'fsm-spec[executor]'\n" == done.stderr
    done = runner.invoke(app, ["late", "--json"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("module", "extra"), [("torch.nn", "executor"), ("flashinfer", "gpu"), ("ray", "ray")]
)
def test_missing_modules_name_their_layer(module: str, extra: str) -> None:
    """The layer of a module is read from the package's own requirements."""
    sentence = str(cli.missing_layer(ModuleNotFoundError("absent", name=module)))
    assert sentence.endswith(f"run: pip install 'fsm-spec[{extra}]'")


def failing(error: BaseException) -> typer.Typer:
    """Build an application with a command that fails."""
    app = cli.application([])

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_interrupt_and_missing_module() -> None:
    """Ctrl-C exits 130 and says nothing; a module missing inside a command is a sentence."""
    done = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"])
    assert (130, "") == (done.exit_code, done.output)
    done = CliRunner().invoke(failing(ModuleNotFoundError("absent", name="torch")), ["fail"])
    assert done.exit_code == 2
    assert "pip install 'fsm-spec[executor]'" in done.stderr


def test_broken_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A closed pipe exits 141, and what Python flushes at its end goes nowhere."""
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as stopped:
            failing(BrokenPipeError())(["fail"])
        out.write("lost")
    assert 141 == stopped.value.code
    assert "" == (tmp_path / "out").read_text()


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry point loads other layers only for commands that are not the core's own."""
    asked: list[object] = []

    def build(layers: object = None) -> object:
        asked.append(layers)
        return lambda: None

    monkeypatch.setattr(cli, "application", build)
    monkeypatch.setattr(sys, "argv", ["fsm-spec", "check"])
    cli.main()
    monkeypatch.setattr(sys, "argv", ["fsm-spec"])
    cli.main()
    assert [[], None] == asked

    def interrupted(layers: object = None) -> object:
        raise KeyboardInterrupt(layers)

    monkeypatch.setattr(cli, "application", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert 130 == stopped.value.code
    assert "" == capsys.readouterr().out


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal's standard error shows what is searched, and is clean behind it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with verdict._progress("ar") as tick:
        assert tick is not None
        tick("2 requests, policy reserve")
    assert "\r\x1b[Kar: searching 2 requests, policy reserve\r\x1b[K" == capsys.readouterr().err


def command_line(*args: str) -> list[str]:
    """Give the command of a child process."""
    return [sys.executable, "-c", "from fsm_spec.cli import main; main()", *args]


def test_start_imports_no_heavy_library() -> None:
    """`--help` and the options of every layer need neither torch, numba, simpy nor numpy."""
    program = (
        "import sys; sys.argv = ['fsm-spec', '--help']\n"
        "from fsm_spec.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print([name for name in ('torch', 'numba', 'simpy', 'numpy', 'networkx', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.splitlines()[-1]


@pytest.mark.parametrize("given", [("show", "ar"), ("--help",), ("check", "--help")])
def test_closed_pipe_is_quiet(given: tuple[str, ...]) -> None:
    """A reader that has gone away, as `| head` does, gives no complaint, in help as elsewhere."""
    with subprocess.Popen(command_line(*given), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert b"" == child.stderr.read()
    assert 141 == child.returncode


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a child")
def test_interrupt_of_a_process_is_quiet() -> None:
    """Ctrl-C during a long check exits 130 without a traceback."""
    arguments = command_line("check", "ngram", "--set", "k=12", "--requests", "2")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        time.sleep(1.5)
        # What compiles may swallow one signal; a person presses the keys again.
        for _ in range(60):
            child.send_signal(signal.SIGINT)
            try:
                out, err = child.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            pytest.fail("the check does not end on Ctrl-C")
    # While Python still loads, the signal itself ends it, which a shell reports as 130 too.
    assert child.returncode in (130, -signal.SIGINT)
    assert b"" == out
    assert err in (b"", b"\ninterrupted: nothing is claimed of ngram\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["chek", "ar"], "no such command 'chek'; did you mean 'check', 'schema'?"),
        (["show", "ar", "--formt", "svg"], "no such option: --formt; did you mean --format?"),
        (["--versio"], "no such option: --versio; did you mean --version?"),
        (["schema", "foo"], "got unexpected extra argument(s) (foo); see fsm-spec schema --help"),
        (["model", "gett"], "no such command 'gett'; did you mean 'get'?"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], sentence: str) -> None:
    """A slip in a command, an option or a value is answered like every other one: a sentence, exit code 2."""
    done = CliRunner().invoke(cli.application(), arguments, prog_name="fsm-spec")
    assert (2, "", f"{sentence}\n") == (done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", [[], ["model"]])
def test_nothing_asked_is_answered_with_help(arguments: list[str]) -> None:
    """Without a command there is no fault to name: the help says what there is."""
    done = CliRunner().invoke(cli.application(), arguments, prog_name="fsm-spec")
    assert 2 == done.exit_code
    assert "Usage: fsm-spec" in done.output
