"""`--attention`: what runs on a CPU, and the sentence for what does not."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.executor.attention_option import Attention, require_attention


def test_auto_and_torch_run_on_a_cpu() -> None:
    """The default has to work everywhere, whatever the pages."""
    for wanted in (Attention.auto, Attention.torch):
        require_attention(wanted, "cpu", 24)


@pytest.mark.parametrize("wanted", ["triton", "flashinfer"])
@pytest.mark.parametrize("command", [["generate", "ar", "--prompt", "x"], ["serve", "ar", "--port", "0"]])
def test_a_kernel_without_its_device_is_refused(command: list[str], wanted: str) -> None:
    """Before any model loads, in one sentence, with the way out."""
    done = CliRunner().invoke(application(), [*command, "--attention", wanted])
    assert 2 == done.exit_code
    assert f"--attention {wanted} needs a GPU, and this run is on the CPU" in " ".join(done.stderr.split())
    assert done.stderr.rstrip().endswith("leave it out, or give torch")


def test_pages_that_the_kernel_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the default is refused too, where its kernel takes no such pages."""
    monkeypatch.setattr("fsm_spec.kernels.backends.find_spec", lambda _: object())
    with pytest.raises(UserError, match="--page-size 32 or 64; give --attention torch"):
        require_attention("auto", "cuda", 48)
