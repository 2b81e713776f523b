"""Sets of shipped specs that tests are parametrised by, computed from what the specs say, never listed by name."""

from __future__ import annotations

from typing import Final

from fsm_spec.language.operators import OPERATORS, key_of
from fsm_spec.language.spec import Spec
from fsm_spec.load import load, shipped

SPECS: Final[dict[str, Spec]] = {name: load(path).spec for name, path in sorted(shipped().items())}


# Specs that go through everything at full size; what is the same for all is asked of others once or in small.
EVERY_WAY: Final = ("ar", "isd", "linear_spec", "ngram", "uno_linear")
# Larger defaults are thresholds and bounds, in thousandths.
_LARGEST_SIZE: Final = 64


def sizes(name: str, most: int = 8) -> dict[str, int]:
    """Give parameters of at most `most`, thresholds as they are: what a CPU runs fast."""
    params = SPECS[name].params.items()
    # A tree that few nodes would leave less deep than its levels is run with more.
    most = max(most, 8) if any(key.startswith("grow") for key in operators(name)) else most
    return {key: min(each.default, most) for key, each in params if each.default <= _LARGEST_SIZE}


def claim(name: str) -> str:
    """Give what a spec claims of its output law: sampling, greedy or no."""
    lossless = SPECS[name].lossless
    return lossless.claim if lossless else "no"


def operators(name: str) -> set[str]:
    """Name the operators of a spec with their rules: `accept:match`."""
    return {key_of(op) for forward in SPECS[name].forwards.values() for op in forward.ops}


def draws_the_targets_own(name: str) -> bool:
    """Tell whether every token a spec emits is the target's own sample: it is judged by `match`, if at all."""
    judges = {op for op in operators(name) if op.startswith(("accept:", "walk:"))}
    return claim(name) == "sampling" and judges <= {"accept:match", "walk:match"}


def has_laws(name: str) -> bool:
    """Tell whether the simulator has a law for every count of a spec."""
    counting = {key for key in operators(name) if any(out.kind == "count" for out in OPERATORS[key].outputs)}
    return {key.partition(":")[0] for key in counting} <= {"accept", "walk", "lookup", "unmask", "budget"}


LOSSLESS: Final = [name for name in SPECS if claim(name) != "no"]
SAMPLING: Final = [name for name in SPECS if claim(name) == "sampling"]
LOSSY: Final = [name for name in SPECS if claim(name) == "no"]
IDENTICAL: Final = [name for name in SPECS if draws_the_targets_own(name)]
SIMULATED: Final = [name for name in SPECS if has_laws(name)]
# What a verify budget grants hangs on the other requests of a launch: a lone request has no chances for it.
EXPECTED: Final = [name for name in SIMULATED if not any(op.startswith("budget:") for op in operators(name))]
# Specs that emit what an unmask operator filled: their rounds start again from masks alone.
DENOISING: Final = [name for name in LOSSY if any(op.startswith("unmask:") for op in operators(name))]
