"""The line about compiling: only on a terminal, only after a while, only once."""

from __future__ import annotations

import sys
import time

import numba
import pytest
from numba.core.event import Event, install_listener

from fsm_spec import notice
from fsm_spec.notice import LINE, CompileNotice


def compile_for(heard: CompileNotice, seconds: float) -> None:
    """Compile a function that calls another, for so many seconds in all."""
    outer, inner = (Event("numba:compile", "START") for _ in range(2))  # type: ignore[no-untyped-call]
    heard.on_start(outer)
    heard.on_start(inner)
    time.sleep(seconds)
    heard.on_end(inner)
    heard.on_end(outer)


@pytest.mark.parametrize("terminal", [True, False])
def test_long_compiles_are_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    """Short compiles add up; files and pipes get no line."""
    monkeypatch.setattr(notice, "PATIENCE", 0.3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    heard = CompileNotice()
    compile_for(heard, 0.1)
    assert "" == capsys.readouterr().err
    for _ in range(2):
        compile_for(heard, 0.4)
    assert (f"{LINE}\n" if terminal else "") == capsys.readouterr().err


def test_numba_tells_of_what_it_compiles() -> None:
    """The events that the line hangs on come from a compile and end with it, and not from a call."""
    heard = CompileNotice()
    with install_listener("numba:compile", heard):
        doubled = numba.njit(lambda value: 2 * value)
        assert 4 == doubled(2)
        spent = heard.spent
        assert spent > 0
        assert 6 == doubled(3)
    assert spent == heard.spent
