"""Chances of an operator's counts as exact fractions: how many drafts are accepted, how many a lookup finds.

The simulator's `--accept` and the executor's `--synthetic-acceptance` are read here too. Chances are read as decimal
text, so that 0.7 is seven tenths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from fsm_spec.errors import UserError
from fsm_spec.language.domain import column_bounds
from fsm_spec.language.findings import nearest
from fsm_spec.language.linear import bounds
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.table import Table

ACCEPT_FORMS: Final = "0.8,0.7,0.6, unconditional:0.8,0.56,0.3 or geometric:0.7"
FORMS: Final = "0.8,0.7,0.6, unconditional:0.8,0.56,0.3, geometric:0.7 or all:0.6"
# Longer words are read as a float: no person writes one, and its exact value would slow every sum down.
_LONGEST_WORD: Final = 24

Form = Literal["each", "geometric", "all"]


@dataclass(frozen=True)
class Chances:
    """Hold the law of one count.

    `each`: the chance of each position given that all before it were taken; `geometric`: one such chance for every
    position; `all`: the chance that the count is the largest it can be, and else 0.
    """

    rates: tuple[Fraction, ...]
    form: Form = "each"

    def law(self, most: int) -> list[Fraction]:
        """Give the chance of each count from 0 to `most`, [most + 1]; their sum is 1."""
        left, law = Fraction(1), []
        for position in range(most):
            rate = self._rate(position)
            law.append(left * (1 - rate))
            left *= rate
        return [*law, left]

    def _rate(self, position: int) -> Fraction:
        if self.form == "all":
            return self.rates[0] if position == 0 else Fraction(1)
        return self.rates[0] if self.form == "geometric" else self.rates[position]

    def describe(self) -> str:
        """Give the text that reads as these chances."""
        words = ",".join(f"{float(rate):g}" for rate in self.rates)
        return words if self.form == "each" else f"{self.form}:{words}"


@dataclass(frozen=True)
class Option:
    """Name the command line option that chances are given by, and the forms it takes."""

    name: str
    examples: str
    single: tuple[Form, ...]


EXPECT: Final = Option("--expect", FORMS, ("geometric", "all"))
# The simulator's option: how many drafts are accepted; lookups have an option of their own there.
ACCEPT: Final = Option("--accept", ACCEPT_FORMS, ("geometric",))
# Likewise: how many masks beyond the surest one are filled in a pass.
UNMASK: Final = Option("--unmask", "0.9,0.8,0.5 or geometric:0.7", ("geometric",))
# The executor's, of the same two counts.
SYNTHETIC_ACCEPTANCE: Final = replace(ACCEPT, name="--synthetic-acceptance")
SYNTHETIC_UNMASKING: Final = replace(UNMASK, name="--synthetic-unmasking")


def parse_chances(text: str, option: Option = EXPECT) -> Chances:
    """Read `0.8,0.7`, `unconditional:0.8,0.56` (never rising), `geometric:0.7` or `all:0.6`; raises UserError."""
    form, colon, rest = text.strip().partition(":")
    if not colon:
        return Chances(_rates(form, text, option))
    if form == "unconditional":
        return Chances(_conditional(_rates(rest, text, option), text, option))
    if form not in option.single:
        raise UserError(f'{option.name} "{text}": unknown form "{form}"; write {option.examples}')
    rates = _rates(rest, text, option)
    if len(rates) != 1:
        raise UserError(
            f'{option.name} "{text}": {form} takes one rate, not {len(rates)}; write {form}:{float(rates[0]):g}'
        )
    return Chances(rates, "all" if form == "all" else "geometric")


def require_drafts(rates: int, drafts: int, spec: str, option: str) -> None:
    """Raise UserError, with both numbers, if a list has not one rate for each draft that `spec` judges."""
    if rates == drafts:
        return
    given = f"{option} gives {counted(rates, 'rate')}"
    if drafts == 0:
        raise UserError(f"{given}, but {spec} judges 0 drafts; leave {option} out")
    raise UserError(
        f"{given}, but {spec} judges {counted(drafts, 'draft')} a round;"
        f" give {counted(drafts, 'rate')} or geometric:RATE"
    )


def require_masks(rates: int, masks: int, option: str) -> None:
    """Raise UserError, with both numbers, if a list has not one rate for each mask beyond the surest one."""
    if rates != masks:
        raise UserError(
            f"{option} gives {counted(rates, 'rate')}, but up to {counted(masks, 'mask')} may be filled"
            f" beyond the surest one; give {counted(masks, 'rate')} or geometric:RATE"
        )


def _rates(words: str, text: str, option: Option) -> tuple[Fraction, ...]:
    rates = []
    for position, word in enumerate((part.strip() for part in words.split(",")), start=1):
        try:
            rate = float(word)
        except ValueError:
            raise UserError(
                f'{option.name} "{text}": "{word}" at position {position} is no number; write {option.examples}'
            ) from None
        if not 0 <= rate <= 1:
            raise UserError(
                f'{option.name} "{text}": {word} at position {position} lies outside 0 to 1; give chances'
            )
        plain = len(word) <= _LONGEST_WORD and "e" not in word.casefold()
        rates.append(Fraction(word) if plain else Fraction(rate))
    return tuple(rates)


def _conditional(survival: Sequence[Fraction], text: str, option: Option) -> tuple[Fraction, ...]:
    """Turn the chances that a draft and all before it are taken into chances given all before it."""
    before, rates = Fraction(1), []
    for position, chance in enumerate(survival, start=1):
        if chance > before:
            raise UserError(
                f'{option.name} "{text}": {float(chance):g} at position {position} rises above {float(before):g}; '
                "unconditional rates cannot rise, so give conditional ones without the word"
            )
        rates.append(chance / before if before else Fraction(0))
        before = chance
    return tuple(rates)


def chances_of(table: Table, texts: Sequence[str]) -> dict[str, Chances]:
    """Say which argument each text speaks of: `ARG=RATES` names one, `RATES` means the accepted counts.

    In an abstract model, `RATES` means every argument. Raises UserError for unknown arguments, arguments without
    chances, and lists that have not one rate for each position.
    """
    counts = _counts(table)
    found: dict[str, Chances] = {}
    for text in texts:
        name, named, rates = text.partition("=")
        chances, name = parse_chances(rates if named else text), name.strip()
        if named and name not in counts:
            raise UserError(f"{table.name}: no count is called {name!r}{nearest(name, counts)}")
        targets = (
            [name] if named else [name for name, (op, _) in counts.items() if op in ("accept", "walk", "")]
        )
        for most in [counts[target][1] for target in targets] or [0]:
            if chances.form == "each" and len(chances.rates) != most:
                raise UserError(_misfit(table, len(chances.rates), most))
        found |= dict.fromkeys(targets, chances)
    for name, (op, _) in counts.items():
        if name not in found:
            what = f"the operator {op}" if op else "an event"
            form = "all:0.6" if op == "lookup" else "geometric:0.7"
            raise UserError(
                f"{table.name}: {name} is a count of {what} without chances; give --expect {name}={form}"
            )
    return found


def _counts(table: Table) -> Mapping[str, tuple[str, int]]:
    """Give every count that the spec's own events take: its operator ("" if none) and largest value."""
    limits = column_bounds({column.name: column.max for column in table.columns}, len(table.states))
    built_in = {row.event for row in table.rows if row.built_in}
    found: dict[str, tuple[str, int]] = {}
    for event in table.events.values():
        if event.name in built_in:
            continue
        forward = table.state(event.states[0]).forward
        operators = table.forwards[forward].operators if forward is not None else ()
        ops = {name: operator.op for operator in operators for name in operator.out}
        for arg in event.args:
            most = bounds(arg.high, limits)[1] - bounds(arg.low, limits)[0]
            found[arg.name] = ops.get(arg.name, ""), max(most, found.get(arg.name, ("", 0))[1])
    return found


def _misfit(table: Table, rates: int, most: int) -> str:
    """Say, with both numbers, that a list has not one rate for each position."""
    given = f"{table.name}: --expect gives {counted(rates, 'rate')}"
    positions = f"the spec judges {counted(most, 'draft')} a round under these parameters"
    listed = f"{counted(most, 'rate')} or " if most else ""
    return f"{given}, but {positions}; give {listed}geometric:RATE"
