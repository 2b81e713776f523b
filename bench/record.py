"""Write benchmark results: one JSON file each, with machine and date."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Describe the machine as far as a reader needs to compare numbers."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "load_average": load}


def read_result(name: str, keys: Iterable[str]) -> dict[str, Any]:
    """Read some parts of `bench/results/NAME.json`; those that are not there are left out."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {key: found[key] for key in keys if key in found}


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Write `bench/results/NAME.json` and say where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"benchmark": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **result}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"results in {path.relative_to(RESULTS.parents[1])}")
    return path
