"""What answers hold is JSON that every reader takes."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from fsm_spec.executor.generate import Options
from fsm_spec.executor.logprobs import TokenLogprob
from fsm_spec.executor.server.answer import Writer
from fsm_spec.executor.server.intake import Order
from fsm_spec.executor.server.job import Delta, Job


@pytest.mark.parametrize("kind", ["cmpl", "chatcmpl"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_probabilities_are_numbers(kind: str, value: float) -> None:
    """JSON knows neither NaN nor infinity; a strict client would not read the answer at all."""
    order = Order("request", kind, 0, 1, [Job("request", 0, [1], 8, Options())], 1, logprobs=True)
    tokenizer = SimpleNamespace(token=str, token_bytes=lambda _: b"a")
    served: Any = SimpleNamespace(fingerprint="", name="tiny", tokenizer=tokenizer)
    writer = Writer(order, served)
    writer.choices[0].add(Delta("a", 1, [TokenLogprob(1, value, ((2, value),))]))
    written = json.dumps(writer.whole(), allow_nan=False)
    assert written.count("-9999.0") == (3 if kind == "cmpl" else 2)
