"""The tables of options of every command in docs/cli.md, as the command line declares them."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import typer
from reference_page import table

from fsm_spec.cli import application

COMMANDS_PAGE: Final = "docs/cli.md"
BLOCK: Final = re.compile(r"(<!-- options: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands(app: typer.Typer, before: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the words and the function of each command of an application and of its groups."""
    for known in app.registered_commands:
        assert known.callback is not None
        yield f"{before}{known.name or known.callback.__name__}", known.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{before}{group.name} ")


def options(function: Callable[..., Any]) -> str:
    """Lay out arguments and options of a command, with their defaults."""
    hints = get_type_hints(function, include_extras=True)
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])[:2]
        argument = isinstance(info, typer.models.ArgumentInfo)
        several = "..." if get_origin(kind) is list else ""
        spelled = f"{info.metavar}{several}" if argument else _spelled(name, info, kind)
        default = _default(parameter.default) if "/" not in spelled else _of_two(spelled, parameter.default)
        rows.append([f"`{spelled}`", default, info.help or ""])
    return table(["option", "default", "meaning"], rows)


def _of_two(spelled: str, default: object) -> str:
    """Give the spelling that stands for a default of an option with two spellings."""
    yes, no = spelled.split("/")
    return "" if default is None else f"`{yes if default else no}`"


def _spelled(name: str, info: Any, kind: Any) -> str:  # noqa: ANN401 - of a class that typer does not name
    # Beside `Annotated`, typer keeps the first spelling as the default.
    first = [info.default] if isinstance(info.default, str) else []
    declared = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
    return f"{', '.join(declared)} {info.metavar or _value(kind)}".strip()


def _value(kind: Any) -> str:  # noqa: ANN401 - types as values
    inner = [arg for arg in get_args(kind) if arg is not type(None)]
    if inner:
        return _value(inner[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(member.value) for member in kind)
    return {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", bool: ""}[kind]


def _default(value: Any) -> str:  # noqa: ANN401 - defaults of any type
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is False:
        return ""
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def with_options(text: str) -> str:
    """Write the tables of options into a page; a command without its marks is an error."""
    known = {name: options(function) for name, function in commands(application())}
    marked = {match[2] for match in BLOCK.finditer(text)}
    if marked != set(known):
        raise SystemExit(
            f"{COMMANDS_PAGE}: marks and commands differ in {', '.join(sorted(marked ^ set(known)))}"
        )
    return BLOCK.sub(lambda match: f"{match[1]}\n{known[match[2]]}\n{match[3]}", text)
