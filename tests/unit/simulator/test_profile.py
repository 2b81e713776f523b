"""Calibration profiles replace numbers of the catalogue, name their source, and refuse what is no number of it."""

from pathlib import Path

import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.cost import Host
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.profile import load_profile


def write(path: Path, text: str) -> str:
    """Write a profile and return its path."""
    file = path / "profile.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_numbers_are_replaced_with_their_source(tmp_path: Path) -> None:
    """What is given changes and names the profile's source; the rest stays the catalogue's."""
    text = "source: our machine\nhardware: {hbm_gb_s: 3000, decode_attention_mbu: [[1000, 0.5]]}\nhost: {step_ns: 5}\n"
    base = load_hardware("h100")
    profile = load_profile(write(tmp_path, text), base, Host(overlapped=False))
    assert (3000.0, ((1000.0, 0.5),)) == (profile.hardware.hbm_gb_s, profile.hardware.decode_attention_mbu)
    assert "our machine" == profile.hardware.sources["hbm_gb_s"]
    assert base.sources["watts"] == profile.hardware.sources["watts"]
    assert Host(step_ns=5, overlapped=False) == profile.host


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "cannot be read"),
        ("hardware: {watts: 1}", "needs the key source"),
        ("source: x\nmodel: {}", "needs the key source"),
        ("source: x\nhardware: {hbm: 1}", "'hbm' is no number of it; did you mean"),
        ("source: x\nhardware: {hbm_gb_s: -1}", "hbm_gb_s: Input should be greater"),
        ("source: x\nhost: {step_ns: fast}", "step_ns is no number of nanoseconds"),
    ],
)
def test_broken_profiles_get_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """A profile that says nothing, or nonsense, is refused with its place."""
    with pytest.raises(UserError, match=words):
        load_profile(write(tmp_path, text), load_hardware("h100"), Host())
