"""How calls are read out of a model's text: whatever it writes, it is a call or it is said."""

from __future__ import annotations

import pytest

from fsm_spec.executor.server.tools import CLOSE, OPEN, ToolFormat


@pytest.mark.parametrize("tagged", [True, False])
def test_a_model_that_opens_brackets_without_end_says_text(tagged: bool) -> None:  # noqa: FBT001 -- both ways
    """A model that repeats itself writes what no reader of JSON follows; the answer is its text, not a fault."""
    brackets = "[" * 100_000
    text = f"{OPEN}{brackets}{CLOSE}" if tagged else brackets
    assert (text, []) == ToolFormat(tagged, [], ("time",), None).read(text)
