"""Every option of simulate and plan changes the result, writes a file, or is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from kernel_tables import write as write_kernels
from typer.testing import CliRunner, Result

from fsm_spec.cli import application

# Long prompts, so that KV costs time, and one page too few for two requests to reserve their longest case.
MASKS = "--input 9 --output 60 --unmask geometric:0.9"
TIGHT = "uno_linear --model llama-3.1-8b --hardware h100 --arrivals poisson:900 --input 2000 --output 8 --requests 5"
RATES = "0.8,0.7,0.6"
TIGHT += " --pages 251 --page-size 16 --accept 0.8,0.7,0.6"
ROOMY = TIGHT.replace("--pages 251", "--pages 9000").replace("--requests 5", "--requests 12")
SMALL = "--model smollm2-135m --hardware h100"
PROFILES = (
    "uno_linear --model llama-3.1-8b --hardware h100 --arrivals closed:4 --input 50 --output 40 --requests 8"
)
PREEMPTS = (
    f"ar {SMALL} --arrivals poisson:2000 --input 40 --output 60 --requests 30 --pages 30 --page-size 16"
)
# By option: the run, and what is added to it. Files stand in the folder `@`.
CHANGES: dict[str, tuple[str, str]] = {
    "--model": (TIGHT, "qwen3-8b"),
    "--hardware": (TIGHT, "a100"),
    "--arrivals": (TIGHT, "constant:900"),
    "--input": (TIGHT, "1999"),
    "--output": (TIGHT, "uniform:7:8"),
    "--requests": (TIGHT, "4"),
    "--shared-prefix": (TIGHT, "2:16"),
    "--turns": (ROOMY, "2:0.001"),
    "--accept": (TIGHT, "uno_linear=0.1,0.1,0.1"),
    "--acceptance": (f"{PROFILES} --acceptance @/profiles.yaml", "uno_linear=@/other.yaml"),
    "--mix": (f"{PROFILES} --acceptance @/profiles.yaml", "code=1"),
    "--concentration": (f"{PROFILES} --acceptance @/profiles.yaml", "0.5"),
    "--drafter": (TIGHT, "1:2"),
    "--lookup": (
        f"ngram {SMALL} --arrivals closed:2 --input 9 --output 30 --accept geometric:0.9 --lookup 0.9",
        "0.1",
    ),
    "--unmask": (f"fast_diffuser {SMALL} --arrivals closed:2 {MASKS}", "geometric:0.1"),
    "--seed": (TIGHT, "9"),
    "--set": (TIGHT.replace(RATES, "geometric:0.7"), "b=5"),
    "--policy": (TIGHT, "reserve"),
    "--max-running": (TIGHT, "1"),
    "--pages": (TIGHT, "300"),
    "--page-size": (TIGHT, "20"),
    "--dtype": (TIGHT, "fp8"),
    "--kv-dtype": (TIGHT, "fp8"),
    "--tp": (TIGHT, "2"),
    "--host": (TIGHT, "serial"),
    "--kernels": (f"ar {SMALL} --arrivals closed:2 --input 50 --output 9", "@/tiny"),
    "--profile": (TIGHT, "@/profile.yaml"),
    "--adapter-rank": (TIGHT, "4096"),
    "--fused-adapter": (
        f"linear_spec {SMALL} --arrivals closed:2 --input 50 --output 40 --accept geometric:0.7",
        "",
    ),
    "--slo": (TIGHT, "ttft_p95=500ms"),
    "--price-per-gpu-hour": (TIGHT, "2"),
    "--seeds": (TIGHT, "2"),
    "--warm-up": (TIGHT, "0.004"),
    "--replicas": (ROOMY, "2"),
    "--routing": (
        f"{PREEMPTS} --output uniform:1:60 --replicas 3".replace("--output 60 ", ""),
        "round-robin",
    ),
    "--prefix-cache": (PREEMPTS, ""),
    "--autoscale": (ROOMY, "1:2:2:0.001"),
    "--fail": (f"{ROOMY} --replicas 2", "0:0.05:1"),
    "--split": (ROOMY, "1:1"),
}
FILES = {"--trace": "t.jsonl", "--report": "r.html", "--parquet": "rows", "--perfetto": "p.json"}
PLAN = f"uno_linear {SMALL} --input 64 --output 8 --workers 1 --accept 0.8,0.7,0.6"
PARETO, TIERS = f"{PLAN} --goal pareto --users 1,3", f"{PLAN} --goal tiers --users 1,9 --vary b=2,6"
TIERS = TIERS.replace(RATES, "geometric:0.7")
FREE = PARETO.replace(RATES, "geometric:0.7")
RECORDED = PARETO.replace(f"--accept {RATES}", "--acceptance @/profiles.yaml")
RATE = f"{PLAN} --goal max-rate --requests 60 --seeds 2 --precision 1 --slo ttft_p95=5ms"
PLANNED: dict[str, tuple[str, str]] = {
    "--goal": (TIERS, "pareto"),
    "--slo": (RATE, "tpot_p95=1.7ms"),
    "--model": (PARETO, "qwen3-4b"),
    "--hardware": (PARETO, "a100"),
    "--tp": (PARETO, "1,3"),
    "--arrivals": (RATE, "constant"),
    "--rate": (f"{RATE.replace('max-rate', 'min-gpus')} --rate 5", "9000"),
    "--users": (PARETO, "1,2"),
    "--input": (PARETO, "65"),
    "--output": (PARETO, "9"),
    "--requests": (PARETO, "5"),
    "--accept": (PARETO, "uno_linear=0.1,0.1,0.1"),
    "--acceptance": (RECORDED, "uno_linear=@/other.yaml"),
    "--mix": (RECORDED, "code=1"),
    "--concentration": (PARETO, "0.5"),
    "--drafter": (PARETO, "1:2"),
    "--lookup": (
        f"{PARETO} --lookup 0.9".replace("uno_linear", "ngram").replace(RATES, "geometric:0.9"),
        "0.1",
    ),
    "--unmask": (f"fast_diffuser {SMALL} --workers 1 --goal pareto --users 1 {MASKS}", "geometric:0.1"),
    "--set": (FREE, "b=5"),
    "--vary": (FREE, "b=2,4"),
    "--policy": (f"{PARETO.replace('--users 1,3', '--users 9')} --output 4000", "@/slow.yaml"),
    "--max-running": (PARETO, "1"),
    "--host": (PARETO, "serial"),
    "--profile": (PARETO, "@/profile.yaml"),
    "--dtype": (PARETO, "fp8"),
    "--kv-dtype": (f"{PARETO} --model llama-3.1-8b --input 2000", "fp8"),
    "--price-per-gpu-hour": (PARETO, "2"),
    "--seed": (PARETO.replace(RATES, "geometric:0.5"), "7"),
    "--seeds": (RATE, "3"),
    "--precision": (RATE, "0.2"),
}
PLAN_FILES = {
    "--policy-out": (TIERS, "tiers.yaml"),
    "--resume": (PARETO, "points.jsonl"),
    "--csv": (PARETO, "points.csv"),
    "--parquet": (PARETO, "points.parquet"),
}
# What changes no result by design, and has tests of its own: forms of output, and where points run.
ELSEWHERE = {"--json", "--help", "--workers", "--ray"}


@cache
def app() -> typer.Typer:
    """Build the application once."""
    return application()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files that options name."""
    path = tmp_path_factory.mktemp("options")
    write_kernels(path)
    entries = {"code": [0.9, 0.8, 0.7], "chat": [0.3, 0.3, 0.3]}
    for name, changed in (("profiles", entries), ("other", {**entries, "code": [0.1, 0.1, 0.1]})):
        rows = [{"name": key, "rates": rates} for key, rates in changed.items()]
        (path / f"{name}.yaml").write_text(
            json.dumps({"source": "a test", "profiles": rows}), encoding="utf-8"
        )
    (path / "profile.yaml").write_text("source: here\nhardware: {hbm_gb_s: 2000}\n", encoding="utf-8")
    (path / "slow.yaml").write_text("policy: slow\nadmit: holdback\nmax_running: 2\n", encoding="utf-8")
    return path


def run(command: str, words: Sequence[str], folder: Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app(), [command, *(word.replace("@", str(folder)) for word in words)])


@cache
def measured(command: str, text: str, folder: Path) -> str:
    """Give all that a run measured, without what echoes its options or may vary."""
    result = run(command, [*text.split(), "--json"], folder)
    assert 0 == result.exit_code, (text, result.output)
    values = json.loads(result.stdout)
    return json.dumps({key: part for key, part in values.items() if key not in ("scenario", "run", "goal")})


def options_of(command: str) -> set[str]:
    """List the first name of every option of a command."""
    found: Any = typer.main.get_command(app())
    params = found.commands[command].params
    return {param.opts[0] for param in params if param.param_type_name == "option"}


def unchanged(command: str, changes: Mapping[str, tuple[str, str]], folder: Path) -> list[str]:
    """List the options whose changes give the same results."""
    return [
        option
        for option, (base, value) in changes.items()
        if measured(command, base, folder) == measured(command, f"{base} {option} {value}", folder)
    ]


def test_every_option_has_a_case() -> None:
    """An option without a case fails here; a case without an option does too."""
    assert options_of("simulate") - ELSEWHERE == {*CHANGES, *FILES}
    assert options_of("plan") - ELSEWHERE == {*PLANNED, *PLAN_FILES}


def test_every_option_of_simulate_changes_the_result(folder: Path) -> None:
    """No option is accepted and ignored; an option that repeats what holds anyway shows that this can fail."""
    assert ["--set"] == unchanged("simulate", {"--set": (TIGHT, "b=4")}, folder)
    assert [] == unchanged("simulate", CHANGES, folder)


def test_every_option_of_plan_changes_the_answer(folder: Path) -> None:
    """The same for searches."""
    assert [] == unchanged("plan", PLANNED, folder)


def test_options_for_files_write_them(folder: Path) -> None:
    """Each file is there afterwards, and not empty."""
    words = [word for option, name in FILES.items() for word in (option, f"@/{name}")]
    for command, base, more in (
        ("simulate", TIGHT, words),
        *(("plan", base, [option, f"@/{name}"]) for option, (base, name) in PLAN_FILES.items()),
    ):
        result = run(command, [*base.split(), *more], folder)
        assert 0 == result.exit_code, result.output
    for name in (*FILES.values(), *(name for _, name in PLAN_FILES.values())):
        path = folder / name
        assert any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0, name


@pytest.mark.parametrize(
    ("command", "words", "sentences"),
    [
        (
            "simulate",
            "ar --set b --slo x --warm-up -1",
            ["simulate needs", "--set b", '--slo "x"', "--warm-up -1"],
        ),
        ("plan", f"{PARETO} --seeds 2 --precision 0.5", ["--seeds would have", "--precision would have"]),
        (
            "plan",
            f"{PARETO} --vary x --tp 0 --price-per-gpu-hour -1 --policy-out x",
            ["--vary", "--tp", "price", "--policy-out"],
        ),
        ("plan", f"{RATE} --users 4 --csv x --vary b=2", ["--users would", "--csv would", "--vary would"]),
        ("simulate", f"{TIGHT} --fused-adapter", ["rows with and without the adapter"]),
        ("simulate", f"{PREEMPTS} --fused-adapter --concentration 3", ["no adapter rows", "judges 0 drafts"]),
        ("simulate", f"{PREEMPTS} --prefix-cache --policy reserve", ["preempts none"]),
        ("simulate", f"{PREEMPTS} --prefix-cache --trace @/no.jsonl", ["leave out --prefix-cache"]),
    ],
)
def test_options_without_effect_are_refused_all_at_once(
    command: str, words: str, sentences: list[str], folder: Path
) -> None:
    """Each fault has its line, and all of them come in one run."""
    result = run(command, words.split(), folder)
    assert 2 == result.exit_code
    assert all(sentence in result.stderr for sentence in sentences), result.stderr


def test_one_set_of_rates_for_several_sources_is_said(folder: Path) -> None:
    """Where drafts come from a lookup or from a pass, one --accept is a mean, and the output says so once."""
    rates = "--input 9 --output 20 --accept geometric:0.7 --seed 1"
    relay = Path(__file__).parents[3] / "docs/examples/relay.yaml"
    both = f"{relay} {SMALL} {rates} --lookup 0.3 --arrivals closed:1,2".split()
    said = "relay: drafts come from 2 sources, search (lookup), guess (sample), and --accept charges"
    assert 1 == run("simulate", both, folder).stdout.count(said)
    one = f"isd {SMALL} {rates} --arrivals closed:1".split()
    assert "sources" not in run("simulate", one, folder).stdout
