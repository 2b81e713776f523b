"""Expected values: what one request costs on average, by an absorbing Markov chain over its local automaton.

The checker lets an operator's counts take every value; here each value has its chance. A request runs alone from its
start to its limit, and no stop token comes. Chances are fractions, so results are exact; very large chains fall back
to floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from fsm_spec.checker.chain import Chain, Number

if TYPE_CHECKING:
    from fsm_spec.checker.chances import Chances
    from fsm_spec.table import Table

LIMIT: Final = 128
# Characters of a fraction that are printed for a person, and bits of a denominator that are written at all.
_LONGEST_SHOWN: Final = 24
_MOST_BITS: Final = 2_048


@dataclass(frozen=True)
class Expected:
    """Hold expected values of one request that runs alone to its limit; exact ones are fractions.

    `rounds`: decode rounds; `forwards`: forwards of the target model in them; `tokens`: tokens they emit (that of the
    prefill left out); `peak_slots`: most slots in use at once, the prompt's included. Abstract models have no
    forwards and emit no tokens: None.
    """

    rounds: Number
    peak_slots: Number
    chances: Mapping[str, str]
    limit: int | None = None
    prompt: int | None = None
    forwards: Number | None = None
    tokens: Number | None = None

    @property
    def tokens_per_round(self) -> Number | None:
        """Give the acceptance length: expected tokens over expected rounds."""
        return self.tokens / self.rounds if self.tokens is not None and self.rounds else None

    @property
    def tokens_per_forward(self) -> Number | None:
        """Give expected tokens over expected forwards of the target model."""
        return self.tokens / self.forwards if self.tokens is not None and self.forwards else None

    @property
    def numbers(self) -> dict[str, Number]:
        """Give the values that the table has, by their names in words."""
        named = {
            "rounds a request": self.rounds,
            "tokens per round": self.tokens_per_round,
            "tokens per forward": self.tokens_per_forward,
            "peak slots a request": self.peak_slots,
        }
        return {name: value for name, value in named.items() if value is not None}

    def lines(self) -> list[str]:
        """Print the values for a person: first what they hold for, then one a line."""
        chances = "; ".join(f"{name} = {text}" for name, text in self.chances.items())
        lead = "expected values of one request alone"
        if self.limit is not None:
            lead += f", prompt {self.prompt}, limit {self.limit}, no stop token"
        width = max(len(name) for name in self.numbers)
        shown = [f"  {name:<{width}}  {_shown(value)}" for name, value in self.numbers.items()]
        return [f"{lead}{f'; {chances}' if chances else ''}", *shown]

    def content(self) -> dict[str, Any]:
        """Give the values as JSON values: each as a float, and as a fraction where one is known."""
        return {
            "chances": dict(self.chances),
            "limit": self.limit,
            "prompt": self.prompt,
            **{
                name.removesuffix(" a request").replace(" ", "_"): {
                    "value": float(value),
                    "exact": _exact(value),
                }
                for name, value in self.numbers.items()
            },
        }


def _exact(value: Number) -> str | None:
    """Print a fraction, unless it is so long that nobody reads it."""
    if not isinstance(value, Fraction) or value.denominator.bit_length() > _MOST_BITS:
        return None
    return str(value)


def _shown(value: Number) -> str:
    text, exact = f"{float(value):.6g}", _exact(value)
    return f"{text} = {exact}" if exact not in (None, text) and len(exact or "") <= _LONGEST_SHOWN else text


def expect(table: Table, chances: Mapping[str, Chances], limit: int = LIMIT, prompt: int = 1) -> Expected:
    """Compute expected rounds, forwards, tokens and peak slots of one request that runs alone.

    `chances`: by argument, as `chances.chances_of` gives them; `limit`: tokens the request emits in all; `prompt`:
    its tokens (abstract models have neither). Raises UserError where a state has several events to choose from, where
    a request may never end, and for chains beyond MOST_STATES states.
    """
    chain = Chain(table, chances, limit, prompt)
    visits = chain.visits()
    rounds, forwards, tokens, peak = (
        sum((visit * chain.rewards[place][kind] for place, visit in visits.items()), start=Fraction(0))
        for kind in range(4)
    )
    told = {name: law.describe() for name, law in chances.items()}
    if table.contract is None:
        return Expected(rounds, peak, told)
    return Expected(rounds, peak, told, limit, prompt, forwards, tokens)
