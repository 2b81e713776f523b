"""Ctrl-C while compiled code runs: what is known is told, and the process ends with 130."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fsm_spec.checker.interrupt import interruptible
from fsm_spec.checker.verdict import _interrupted

# A compiled loop that would run for minutes, and a signal that comes meanwhile.
CODE = """
import os, signal, threading
from fsm_spec.checker.interrupt import interruptible
from fsm_spec.jit import jit

@jit()
def spin(rounds):
    total = 0
    for index in range(rounds):
        total ^= index * total + 1
    return total

spin(1)
with interruptible(lambda: print("told")):
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    spin(10**12)
print("not reached")
"""


def test_compiled_code_is_interrupted(tmp_path: Path) -> None:
    """A search would otherwise go on for minutes, or end without a word."""
    file = tmp_path / "spin.py"
    file.write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-P", str(file)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (130, "told\n") == (done.returncode, done.stdout), done.stderr


def test_handlers_are_as_before() -> None:
    """What comes after a check is interrupted as usual; beside the main thread nothing is changed."""
    before = signal.getsignal(signal.SIGINT)
    with interruptible(lambda: None):
        assert before != signal.getsignal(signal.SIGINT)
    assert before == signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def inside() -> None:
        with interruptible(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=inside)
    other.start()
    other.join()
    assert [before] == seen


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output still gets its one value, with the verdict undetermined for what is left."""
    _interrupted([], ["ar"], as_json=True)
    assert {"file": "ar", "verdict": "undetermined", "interrupted": True} == json.loads(
        capsys.readouterr().out
    )
    _interrupted([], ["ar", "isd"], as_json=False)
    assert "\ninterrupted: nothing is claimed of ar, isd\n" == capsys.readouterr().err
