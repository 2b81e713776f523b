"""Run the points of a study: on all cores or on a Ray cluster, resumable, and never losing what was done."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fsm_spec.errors import UserError
from fsm_spec.simulator.point import Result, evaluate, key_of
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.slo import Slo
from fsm_spec.writing import writing

MOST_CRASHES = 3  # of a worker process over the same point, which then counts as failed

Progress = Callable[[int, int], None]


@dataclass
class Workers:
    """Run points in parallel; results do not depend on how many workers there are.

    `count` of 0 takes all cores, 1 runs in this process. `ray` names a cluster (`auto` or an address). `resume` is a
    file of results that is read first and appended to: what stands in it is not run again.
    """

    count: int = 0
    ray: str | None = None
    resume: Path | None = None
    progress: Progress | None = None
    _known: dict[str, Result] | None = field(default=None, repr=False)
    _pool: ProcessPoolExecutor | None = field(default=None, repr=False)
    _done: int = 0
    _asked: int = 0

    def __enter__(self) -> Self:
        """Start nothing yet: processes start with the first points."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the processes; where something went wrong, or somebody pressed Ctrl-C, without their results."""
        if kind is None:
            self.close()
        else:
            self.abandon()

    def run(self, scenarios: Sequence[Scenario], slos: Sequence[Slo] = ()) -> list[Result]:
        """Give the result of each scenario, in their order."""
        limits = "".join(sorted(slo.describe() for slo in slos))
        keys = [key_of(scenario) + limits for scenario in scenarios]
        known = self._read()
        fresh = {key: each for key, each in zip(keys, scenarios, strict=True) if key not in known}
        self._asked += len(fresh)
        for key, result in self._runs(fresh, slos):
            known[key] = result
            self._append(key, result)
            self._done += 1
            if self.progress is not None:
                self.progress(self._done, self._asked)
        return [known[key] for key in keys]

    def _runs(self, fresh: dict[str, Scenario], slos: Sequence[Slo]) -> Iterator[tuple[str, Result]]:
        count = self.count or os.cpu_count() or 1
        if self.ray is not None:
            return _on_ray(self.ray, fresh, slos)
        if count == 1 or len(fresh) < 2:
            return ((key, evaluate(scenario, slos)) for key, scenario in fresh.items())
        return self._on_cores(count, fresh, slos)

    def _on_cores(
        self, count: int, fresh: dict[str, Scenario], slos: Sequence[Slo]
    ) -> Iterator[tuple[str, Result]]:
        """Run on this machine; a worker that dies takes the points in flight with it, and they are tried again."""
        left, crashes = dict(fresh), dict.fromkeys(fresh, 0)
        while left:
            # Kept between runs: a new process reads all compiled code again.
            self._pool = self._pool or ProcessPoolExecutor(count, initializer=_leave_interrupts)
            running: dict[Future[Result], str] = {
                self._pool.submit(evaluate, scenario, slos): key for key, scenario in left.items()
            }
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    key = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        self._pool = None
                        crashes[key] += 1
                        if crashes[key] < MOST_CRASHES:
                            continue
                        result = {"error": "its worker process died; is there enough memory?"}
                    del left[key]
                    yield key, result

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def abandon(self) -> None:
        """End the processes at once, with what they are running."""
        if self._pool is None:
            return
        # The executor itself can only wait for work that has begun.
        processes = list(self._pool._processes.values())  # noqa: SLF001
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        self._pool = None

    def _read(self) -> dict[str, Result]:
        """Read what was done before; a last line that was cut off is left out."""
        if self._known is None:
            self._known = {}
            if self.resume is not None and self.resume.exists():
                for line in self.resume.read_text(encoding="utf-8").splitlines():
                    try:
                        record = json.loads(line)
                        self._known[record["key"]] = record["result"]
                    except (ValueError, KeyError, TypeError):
                        continue
        return self._known

    def _append(self, key: str, result: Result) -> None:
        if self.resume is None:
            return
        with writing(self.resume, "--resume"), self.resume.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")


def _leave_interrupts() -> None:
    """Let Ctrl-C reach the main process alone, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_ray(address: str, fresh: dict[str, Scenario], slos: Sequence[Slo]) -> Iterator[tuple[str, Result]]:
    """Run on a Ray cluster; `auto` finds one, else starts one on this machine, which is stopped at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # type: ignore[import-not-found]  # noqa: PLC0415 - a layer of its own
    except ImportError:
        raise UserError("--ray needs Ray, which is not installed; run pip install fsm-spec[ray]") from None
    mine = not ray.is_initialized()
    try:
        if mine:
            where = None if address == "auto" else address
            ray.init(address=where, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"--ray {address}: no cluster answers there ({reason}); give auto") from error
    try:
        yield from _remotely(ray, fresh, slos)
    finally:
        if mine:
            ray.shutdown()


def _remotely(
    ray: Any,  # noqa: ANN401 - a layer of its own
    fresh: dict[str, Scenario],
    slos: Sequence[Slo],
) -> Iterator[tuple[str, Result]]:
    """Run each point as a task; one whose worker dies again and again is a failed point."""
    remote: Any = ray.remote(max_retries=MOST_CRASHES)(evaluate)
    running = {remote.remote(scenario, tuple(slos)): key for key, scenario in fresh.items()}
    while running:
        (done, *_), _ = ray.wait(list(running))
        key = running.pop(done)
        try:
            result: Result = ray.get(done)
        except ray.exceptions.RayError as error:
            result = {"error": f"Ray: {error}"}
        yield key, result
