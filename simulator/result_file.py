"""Result files read back: what `simulate` and `bench serve` wrote as JSON, for plots beside another run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fsm_spec.errors import UserError
from fsm_spec.simulator.metrics import KvUse, Latency, Summary
from fsm_spec.simulator.report import Scenario
from fsm_spec.simulator.timeline import Timeline


@dataclass
class Recorded(Timeline):
    """Hold the series of a result file as the timeline that they were taken from."""

    series: dict[str, list[float]] | None = None

    @property
    def edges_ns(self) -> list[int]:
        """Return the end of each bucket."""
        return [int(end * 1e9) for end in (self.series or {}).get("end_s", [])]

    def mean_levels(self, name: str) -> list[float]:
        """Return the mean of a level in each bucket."""
        return (self.series or {}).get(name, [0.0] * len(self.edges_ns))

    def rates(self, name: str) -> list[float]:
        """Return the amount a second in each bucket."""
        return self.mean_levels(f"{name}_s")


def read_results(path: Path) -> list[Scenario]:
    """Read the runs of a result file; raises UserError for a file that holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [_scenario(run) for run in (found if isinstance(found, list) else [found])]
    except (OSError, UnicodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); name a file that simulate --json wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: holds no results; name a file that simulate --json wrote") from None


def _scenario(run: dict[str, Any]) -> Scenario:
    series = run["over_time"]
    levels = tuple(name for name in series if name != "end_s" and not name.endswith("_s"))
    how = run.get("run", {})
    measured = how.get("source") == "measured"
    return Scenario(
        f"{run['spec'] or how['url']}, measured" if measured else run["spec"],
        run["scenario"],
        _summary(run),
        Recorded(levels, ("tokens",), series=series),
        "",
        tuple(run["verdicts"]),
        warnings=tuple(run.get("warnings", ())),
        measured=measured,
        failed=how.get("failed", {}),
        comparable=run.get("comparable", True),
    )


def _summary(run: dict[str, Any]) -> Summary:
    drafts, kv = run["drafts"], run["kv"]
    plain = ("requests", "finished", "rounds", "duration_s", "throughput_tok_s", "throughput_req_s")
    more = ("emitted_tokens", "acceptance_length", "tokens_per_forward", "preemptions")
    use = ("pages", "page_size", "mean_pages", "peak_pages", "mean_slots", "peak_slots")
    return Summary(
        **{name: run[name] for name in (*plain, *more)},
        ttft_ms=Latency(**run["ttft_ms"]),
        tpot_ms=Latency(**run["tpot_ms"]),
        e2e_ms=Latency(**run["e2e_ms"]),
        per_token_ms=Latency(**run.get("per_token_ms", Latency.of(np.zeros(0)).to_dict())),
        drafted=drafts["drafted"],
        accepted=drafts["accepted"],
        kv=None if kv is None else KvUse(**{name: kv[name] for name in use}),
    )
