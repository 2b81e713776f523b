"""Rotary embeddings that are stretched: frequencies, the factor on queries and keys, and queries far out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.json_numbers import NumberReader
from fsm_spec.executor.models.rope import RopeScaling, query_gain, read_rope, yarn_frequencies

# The keys as Ministral 3 and Nemotron-Labs-Diffusion publish them; frequencies as transformers 5.24 computes them.
MINISTRAL: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
PLAIN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "truncate": False,
}
EXPECTED = {
    16.0: [1.0, 0.177828, 0.0316228, 0.0038661, 0.000375, 1.11142e-05, 1.97642e-06, 3.51463e-07],
    4.0: [1.0, 0.160589, 0.025, 0.00790569, 0.0025, 0.000790569, 0.00025, 7.90569e-05],
}


def read(rope: dict[str, Any], **more: object) -> RopeScaling:
    """Read a nested description of YaRN."""
    published = {"rope_parameters": rope, "max_position_embeddings": 131072, **more}
    theta, scaling = read_rope(NumberReader(published, "config.json"))
    assert scaling is not None
    assert theta == rope["rope_theta"]
    return scaling


@pytest.mark.parametrize("rope", [MINISTRAL, PLAIN])
def test_yarn_is_that_of_transformers(rope: dict[str, Any]) -> None:
    """A wrong ramp would turn long texts wrongly, and short ones by a little."""
    plain = torch.tensor([rope["rope_theta"] ** (-pair / 8) for pair in range(8)], dtype=torch.float64)
    got = yarn_frequencies(plain, rope["rope_theta"], read(rope))
    expected = torch.tensor(EXPECTED[rope["factor"]], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)


def test_attention_factor_follows_from_the_factor() -> None:
    """Two equal knobs cancel, without them the paper's rule holds, and a given factor wins."""
    assert read(MINISTRAL).attention_factor == 1.0
    assert read(PLAIN).attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert read(PLAIN | {"attention_factor": 1.25}).attention_factor == 1.25
    assert read(PLAIN | {"factor": 0.5}).attention_factor == 1.0


def test_a_factor_left_out_is_the_ratio_of_the_contexts() -> None:
    """Configurations that name both contexts need not name their ratio."""
    rope = {key: value for key, value in MINISTRAL.items() if key != "factor"}
    assert read(rope).factor == 8.0
    del rope["original_max_position_embeddings"]
    assert (1.0, 131072) == (read(rope).factor, read(rope).original_context)


def test_queries_grow_beyond_the_original_context() -> None:
    """Inside it nothing changes."""
    gain = query_gain(torch.tensor([0, 16383, 16384, 40000]), read(MINISTRAL))
    expected = [1.0, 1.0, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3)]
    assert expected == pytest.approx(gain.tolist())
    assert read(PLAIN).query_beta == 0.0


def test_unknown_scaling_is_named() -> None:
    """What is not implemented is refused, not run without scaling."""
    with pytest.raises(
        UserError, match='rope scaling "longrope" is unknown; known are linear, llama3 and yarn'
    ):
        read(PLAIN | {"rope_type": "longrope"})
