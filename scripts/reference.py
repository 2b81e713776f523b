"""Write the reference pages from what they describe: models, operators, findings, catalogue, options of commands.

`scripts/reference.py` writes docs/reference/*.md and the tables between the marks `<!-- options: NAME -->` and
`<!-- end -->` of docs/cli.md; with `--check` it only says which of them are out of date. Findings are those that the
slips in docs/reference/faults.yaml bring out.
Each page is made in a file beside this one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reference_catalogue import catalogue
from reference_grammar import grammar, operators
from reference_options import COMMANDS_PAGE, with_options
from reference_page import PROJECT
from reference_specs import findings, specs


def written(root: Path) -> dict[str, str]:
    """Give the text of every page below a project's folder as it should be."""
    return {
        "docs/reference/grammar.md": grammar(),
        "docs/reference/operators.md": operators(),
        "docs/reference/findings.md": findings(),
        "docs/reference/catalogue.md": catalogue(),
        "docs/reference/specs.md": specs(),
        COMMANDS_PAGE: with_options((root / COMMANDS_PAGE).read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write the pages, or say which are out of date; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the reference pages.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a page is out of date"
    )
    parser.add_argument("--root", type=Path, default=PROJECT, help="folder that holds docs/")
    asked = parser.parse_args()
    stale = []
    for name, text in written(asked.root).items():
        path = asked.root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not asked.check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is out of date; run scripts/reference.py" if asked.check else f"{name} written")
    return int(asked.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
