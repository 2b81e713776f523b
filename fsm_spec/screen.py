"""The consoles of commands: rich's, which leave a closed pipe to the command line's one handler, and fold text."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

_SET_IN = 2  # letters that further lines of a folded one stand behind its first


class Screen(Console):
    """Print to standard output; rich itself would exit with 1, which `check` means otherwise."""

    def on_broken_pipe(self) -> NoReturn:
        """Let the command line end the command as a closed pipe does (exit code 141)."""
        raise BrokenPipeError


class FoldedScreen(Screen):
    """Fold lines at words to the width of a terminal; in files and pipes, and where they match `whole`, they stay.

    Further lines stand two letters behind the first, or at the column `hang`.
    """

    def __init__(self, *, whole: str = r"(?!)", hang: int | None = None) -> None:
        super().__init__(highlight=False, soft_wrap=True)
        self._whole = re.compile(whole)
        self._hang = hang

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich declares it
        """Print as rich does, texts folded."""
        if self.is_terminal:
            objects = tuple(map(self._fitting, objects))
        super().print(*objects, **options)

    def _fitting(self, printed: object) -> object:
        if isinstance(printed, str):
            return self._folded(Text(printed)).plain
        return self._folded(printed) if isinstance(printed, Text) else printed

    def _folded(self, text: Text) -> Text:
        lines = [part for line in text.split("\n", allow_blank=True) for part in self._parts(line)]
        return Text("\n", end=text.end).join(lines)

    def _parts(self, line: Text) -> list[Text]:
        """Divide one line; words that are longer than the width stay as they are."""
        if self._whole.search(line.plain):
            return [line]
        cuts, hang = folds(line.plain, self.width, self._hang)
        first, *rest = line.divide(cuts)
        for part in (first, *rest)[:-1]:
            part.rstrip()
        return [first, *(Text(" " * hang).append_text(part) for part in rest)]


def folds(line: str, width: int, hang: int | None = None) -> tuple[list[int], int]:
    """Say where a line is cut to fit a width, and how far further lines are set in."""
    indent = len(line) - len(line.lstrip())
    hang = indent + _SET_IN if hang is None else hang
    hang = hang if 3 * hang <= 2 * width else _SET_IN
    cuts: list[int] = []
    start, least, room = 0, indent, width
    while len(line) - start > room:
        cut = line.rfind(" ", least + 1, start + room + 1)
        cut = line.find(" ", start + room) if cut < 0 else cut
        if cut < 0:
            break
        cuts.append(cut + 1)
        start, least, room = cut + 1, cut + 1, width - hang
    return cuts, hang
