"""Exceptions of the project, each with its usual causes; findings about a spec file are in `language/findings.py`."""

from __future__ import annotations


class FsmSpecError(Exception):
    """Be the root of every error that a user can cause; its text is one sentence that names the way out."""


class UserError(FsmSpecError):
    """Report a bad argument, option or input file; usual causes: a misspelt name, a value out of range."""


class SpecError(FsmSpecError):
    """Report a spec file with findings; usual causes: misspelt names, missing transitions, bad expressions."""


class UnhandledEvent(FsmSpecError):
    """Report an event in a state that has no row for it; usual cause: a driver bug or an edited table."""


class PoolExhausted(FsmSpecError):
    """Report a request that the pool can never hold; usual cause: too few pages for prompt plus limit."""


class TraceDivergence(FsmSpecError):
    """Report the first trace record that the table does not allow; usual causes: another spec, a changed file."""


class MissingLayer(FsmSpecError):
    """Report an optional layer that is not installed; usual cause: a base install without `[executor]`."""
