"""Text on a terminal: folded at words, with styles kept; whole in files and pipes."""

from __future__ import annotations

import io

import pytest
from rich.color import ColorSystem
from rich.text import Text

from fsm_spec.drawing.block_mask import DRAWN
from fsm_spec.screen import FoldedScreen, folds


def printed(*objects: object, width: int, terminal: bool = True, **how: str | int) -> str:
    """Print on a screen of a width -> what came out."""
    screen = FoldedScreen(**how)  # type: ignore[arg-type]
    screen.file, screen.width = io.StringIO(), width
    screen._force_terminal, screen._color_system = terminal, ColorSystem.STANDARD if terminal else None
    screen.print(*objects, end="")
    return screen.file.getvalue()


@pytest.mark.parametrize(
    ("line", "width", "hang", "expected"),
    [
        ("short", 5, None, ([], 2)),
        ("one two three", 7, None, ([8], 2)),
        ("  one two three four", 10, None, ([10, 16], 4)),
        ("name  what it is about", 12, 6, ([11, 17], 6)),
        ("name  what it is about", 8, 6, ([6, 11, 17], 2)),
        ("a-word-beyond-the-width and more", 8, None, ([24, 28], 2)),
        ("a-word-beyond-the-width", 8, None, ([], 2)),
        ("", 8, None, ([], 2)),
    ],
)
def test_lines_are_cut_between_words(
    line: str, width: int, hang: int | None, expected: tuple[list[int], int]
) -> None:
    """No word is cut, and no part but that of a longer word is wider than the terminal."""
    assert expected == folds(line, width, hang)


def test_only_terminals_fold() -> None:
    """Files and pipes hold lines as they are written, for grep and diff."""
    text = "one two three\n\n  four five six"
    assert "one two\n  three\n\n  four\n    five\n    six" == printed(text, width=9)
    assert text == printed(text, width=9, terminal=False)
    assert "" == printed("", width=9)
    assert "7" == printed(7, width=9)


def test_styles_survive_and_drawings_stay() -> None:
    """Colours go on behind a fold; a block mask and a command to copy are no words."""
    styled = Text.assemble("one ", ("two three", "bold"))
    assert "one \x1b[1mtwo\x1b[0m\n  \x1b[1mthree\x1b[0m" == printed(styled, width=7)
    mask = "     1  masks scratch ██▒▒····\n     0 1 2 3"
    assert mask == printed(mask, width=12, whole=DRAWN)
    assert "of: █\n  keep" == printed("of: █ keep", width=9, whole=DRAWN)
