"""Cases for `hostile_runs.py`: a spec's parameters, a policy, a pool and requests, drawn together.

`draw` is broad. `draw_resizing` is bent towards what is rare there: sizes that change while requests are between two
rounds. A tier may then choose any parameter that the rules let a policy choose, whether the shipped spec says so or
not; crowds come in bursts beside requests that stay, and go again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

from shipped_specs import SPECS

from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError
from fsm_spec.language.spec import Param
from fsm_spec.load import Loaded, load, loads
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.prefix_cache import refusal
from fsm_spec.table import Table
from fsm_spec.tiers import Tiers, tiers_of

VOCABULARY: Final = 6
# Larger parameters are thresholds and bounds, in thousandths.
_LARGEST_SIZE: Final = 128
# Sizes are drawn again where the spec does not take them together.
_TRIES: Final = 20


@dataclass(frozen=True)
class Arrival:
    """Hold one request: when it comes, what it asks, and the iteration in which it is given up, if it is."""

    at: int
    prompt: tuple[int, ...]
    limit: int
    stops: tuple[int, ...]
    aborted: int | None


@dataclass(frozen=True)
class Case:
    """Hold what one run is made of; `text` is the spec's."""

    seed: int
    text: str
    table: Table
    policy: Policy
    pool: Pool
    prefix: bool
    arrivals: tuple[Arrival, ...]

    def describe(self) -> str:
        """Name all that was drawn, so that a failure can be read."""
        return (
            f"seed {self.seed}: {self.table.name} {dict(self.table.params)} {self.policy!r} {self.pool} "
            f"prefix={self.prefix} {self.arrivals}"
        )


def decoding_specs() -> list[str]:
    """List the shipped specs that have forwards."""
    return [name for name, spec in SPECS.items() if spec.contract is not None]


_read = cache(loads)


@cache
def resizable(name: str) -> Loaded:
    """Load a shipped spec with every parameter tiered that the rules let a policy change between rounds."""
    loaded = load(name)
    for param in loaded.spec.params:
        if not loaded.spec.params[param].tiered:
            text = re.sub(rf"(?m)^(  {param}: \{{)", r"\1tiered: true, ", loaded.text, count=1)
            try:
                loaded = _read(text)
            except FsmSpecError:
                continue
    return loaded


def resizing_specs() -> list[str]:
    """List the shipped specs of which a policy can change a size."""
    return [name for name in decoding_specs() if _tiered(resizable(name))]


def _tiered(loaded: Loaded) -> list[str]:
    return [key for key, param in loaded.spec.params.items() if param.tiered]


def _sized(source: random.Random, param: Param) -> int:
    low, high = param.range
    return source.randint(low, high if high > _LARGEST_SIZE else min(high, low + 3))


@cache
def _compiled(text: str, params: tuple[tuple[str, int], ...]) -> Table:
    loaded = _read(text)
    return compile_table(loaded.spec, dict(params), line_of=loaded.line_of)


def _draw_table(source: random.Random, loaded: Loaded) -> Table:
    params = {key: _sized(source, param) for key, param in loaded.spec.params.items()}
    return _compiled(loaded.text, tuple(params.items()))


def _draw_policy(source: random.Random, loaded: Loaded) -> dict[str, Any]:
    """Draw a policy without tiers."""
    policy: dict[str, Any] = {
        "admit": source.choice(["reserve", "holdback", "preempt"]),
        "prefill": {"tokens": source.choice([1, 2, 3, 5, 9, 2048]), "mixed": source.random() < 0.7},
        "max_running": source.choice([1, 2, 3, 4, 256]),
        "lag": source.choice([0, 0, 1]),
    }
    if any(op.op == "budget" for forward in loaded.spec.forwards.values() for op in forward.ops):
        rows = sorted(source.sample(range(1, 40), 3))
        rates = [source.randint(1, 50) for _ in rows]
        if source.random() < 0.8:
            policy["budget"] = {"rows": rows, "steps_per_second": rates}
    return policy


def _draw_tier(source: random.Random, loaded: Loaded, key: str, bounds: Sequence[int]) -> dict[str, Any]:
    param = loaded.spec.params[key]
    steps: list[dict[str, int]] = [{"to": bound, "value": _sized(source, param)} for bound in sorted(bounds)]
    return {"param": key, "steps": [*steps, {"value": _sized(source, param)}]}


def draw(seed: int, names: Sequence[str]) -> Case | None:
    """Draw a case of one of the specs named; None where the drawn parameters are not the spec's to take."""
    source = random.Random(seed)
    return _draw_of(seed, source, load(source.choice(names)))


def draw_of(seed: int, loaded: Loaded) -> Case | None:
    """Draw a case of a spec as `draw` does."""
    return _draw_of(seed, random.Random(seed), loaded)


def _draw_of(seed: int, source: random.Random, loaded: Loaded) -> Case | None:
    try:
        table = _draw_table(source, loaded)
        policy = _draw_policy(source, loaded)
        for key in _tiered(loaded):
            if source.random() < 0.8:
                bounds = source.sample(range(1, 5), source.randint(0, 3))
                policy["tier"] = _draw_tier(source, loaded, key, bounds)
        chosen = Policy.model_validate(policy)
        tiers = tiers_of(table, chosen)
    except FsmSpecError:
        return None
    prefix = not refusal(table) and source.random() < 0.5
    arrivals = tuple(_draw_arrivals(source, prefix=prefix))
    pool = _draw_pool(source, tiers, chosen, arrivals, spare=(0, 0, 1, 2, 3, 5, 20))
    return Case(seed, loaded.text, table, chosen, pool, prefix, arrivals)


def _draw_pool(
    source: random.Random,
    tiers: Tiers,
    policy: Policy,
    arrivals: Sequence[Arrival],
    *,
    spare: Sequence[int],
) -> Pool:
    """Draw a pool that holds the longest request, and little more: one of the `spare` numbers of pages."""
    page_size = source.choice([1, 2, 3, 4, 7])
    most = max(
        longest_pages(tiers.largest, Pool(0, page_size), len(each.prompt), each.limit, policy)
        for each in arrivals
    )
    return Pool(max(1, most + source.choice(spare)), page_size)


def _draw_arrivals(source: random.Random, *, prefix: bool) -> Iterator[Arrival]:
    common = _draw_common(source, prefix=prefix)
    for _ in range(source.randint(2, 6)):
        prompt = _draw_prompt(source, common)
        stops = tuple(source.sample(range(VOCABULARY), source.choice([0, 0, 0, 1])))
        given_up = source.randint(0, 12) if source.random() < 0.15 else None
        yield Arrival(source.choice([0, 0, 1, 2, 4]), prompt, source.randint(0, 14), stops, given_up)


def _draw_common(source: random.Random, *, prefix: bool) -> tuple[int, ...]:
    return tuple(source.randrange(VOCABULARY - 1) for _ in range(source.randint(0, 8) if prefix else 0))


def _draw_prompt(source: random.Random, common: tuple[int, ...]) -> tuple[int, ...]:
    own = tuple(source.randrange(VOCABULARY - 1) for _ in range(source.randint(1, 6)))
    return common + own if source.random() < 0.8 else (common or own)


def draw_resizing(seed: int, names: Sequence[str]) -> Case:
    """Draw a case of one of the specs named in which a policy changes a size; each has a parameter for it."""
    source = random.Random(f"resizing {seed}")
    loaded = resizable(source.choice(names))
    policy = _draw_policy(source, loaded)
    policy["max_running"] = source.choice([3, 4, 5, 256])
    policy["lag"] = source.choice([0, 1])
    table, chosen, tiers = next(_draw_sizes(source, loaded, policy))
    prefix = not refusal(table) and source.random() < 0.5
    arrivals = tuple(_draw_bursts(source, prefix=prefix))
    pool = _draw_pool(source, tiers, chosen, arrivals, spare=(0, 1, 2, 4, 8, 16, 32))
    return Case(seed, loaded.text, table, chosen, pool, prefix, arrivals)


def _draw_sizes(
    source: random.Random, loaded: Loaded, policy: dict[str, Any]
) -> Iterator[tuple[Table, Policy, Tiers]]:
    """Draw parameters and a tier with low bounds until the spec takes all its sizes and two neighbours differ."""
    while True:
        try:
            table = _draw_table(source, loaded)
        except FsmSpecError:
            continue
        for _ in range(_TRIES):
            key = source.choice(_tiered(loaded))
            tier = _draw_tier(source, loaded, key, source.sample(range(1, 4), source.randint(1, 3)))
            chosen = Policy.model_validate({**policy, "tier": tier})
            try:
                tiers = tiers_of(table, chosen)
            except FsmSpecError:
                continue
            if any(one is not other for one, other in pairwise(tiers.tables)):
                yield table, chosen, tiers


def _draw_bursts(source: random.Random, *, prefix: bool) -> Iterator[Arrival]:
    """Draw requests that stay long, and crowds of short ones that come at once beside them."""
    common = _draw_common(source, prefix=prefix)
    for _ in range(source.randint(1, 2)):
        stops = tuple(source.sample(range(VOCABULARY), source.choice([0, 0, 0, 1])))
        yield Arrival(
            source.choice([0, 0, 1]), _draw_prompt(source, common), source.randint(12, 24), stops, None
        )
    for _ in range(source.randint(1, 3)):
        at = source.randint(0, 9)
        for _ in range(source.randint(1, 3)):
            stops = tuple(source.sample(range(VOCABULARY), source.choice([0, 0, 1])))
            given_up = at + source.randint(0, 4) if source.random() < 0.25 else None
            yield Arrival(at, _draw_prompt(source, common), source.randint(0, 7), stops, given_up)
