"""What a checkpoint's configuration says of a spec's parameters: the block it was trained on."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_spec.language.spec import Spec
from fsm_spec.policy import Policy


def trained_settings(
    spec: Spec, given: Mapping[str, int], policy: Policy, block_size: int | None
) -> dict[str, int]:
    """Add to the parameters that a user gave those that follow from a model's block size.

    What the user gave wins, and so does a policy that chooses the size itself. A block that a parameter cannot take
    gives the nearest value that it can.
    """
    chosen = dict(given)
    if block_size is None:
        return chosen
    for name, param in spec.params.items():
        if param.trained is None or name in given or (policy.tier is not None and policy.tier.param == name):
            continue
        low, high = param.range
        chosen[name] = min(max(block_size + (param.trained == "block + 1"), low), high)
    return chosen
