"""The console of commands: rich's, which leaves a closed pipe to the command line's one handler."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class Screen(Console):
    """Print to standard output; rich itself would exit with 1, which `check` means otherwise."""

    def on_broken_pipe(self) -> NoReturn:
        """Let the command line end the command as a closed pipe does (exit code 141)."""
        raise BrokenPipeError
