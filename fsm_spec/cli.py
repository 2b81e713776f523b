"""The command line `fsm-spec`: the language core's commands from `cli_*.py`, those of other layers by entry point.

Imports stay inside the commands, so that `fsm-spec --help` answers at once. Exit codes: 0 done or holds, 1 refuted,
2 faulty file or bad usage, 3 undetermined, 130 interrupted. A user's mistake is one sentence, never a traceback.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from fsm_spec import cli_check, cli_spec
from fsm_spec.errors import FsmSpecError, MissingLayer

LAYERS: Final = "fsm_spec.commands"
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE, as shells report it


class Commands(TyperGroup):
    """Run commands and turn what a user can cause into one sentence and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as below
        """Read the options that stand before a command."""
        as_json = "--json" in args
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:
            if usage := usage_sentence(error):
                fail(usage, as_json=as_json)
            raise

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 - a class that is not the same in all versions of typer
        """Run the command that the context names."""
        as_json = "--json" in ctx.args
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except FsmSpecError as error:
            fail(str(error), as_json=as_json)
        except ModuleNotFoundError as error:
            fail(str(missing_layer(error)), as_json=as_json)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            # Python would complain once more when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(PIPE_CLOSED) from None
        except Exception as error:
            if usage := usage_sentence(error):
                fail(usage, as_json=as_json)
            raise
        return result


NO_SPEC: Final = (
    "no spec is named; name a spec file, or a shipped spec such as ar (fsm-spec specs lists them)"
)


def usage_sentence(error: Exception) -> str:
    """Say a usage error of the command-line library in one sentence; empty for what is none, such as a call for help.

    Its classes are not the same in all versions of the library, so they are known by what they have.
    """
    if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    said = " ".join(str(error.format_message()).split()).replace("Value error, ", "").rstrip(".")
    if said.startswith("Missing argument 'SPEC"):
        return NO_SPEC
    said = re.sub(r" \(Possible options: (.*)\)", r"; did you mean \1?", said)
    said = re.sub(r"\. (Did|Choose)", lambda found: f"; {found[1].lower()}", said)
    path = getattr(getattr(error, "ctx", None), "command_path", "fsm-spec")
    return f"{said[0].lower()}{said[1:]}{'' if said.endswith('?') else f'; see {path} --help'}"


def fail(sentence: str, *, as_json: bool) -> NoReturn:
    """Say what went wrong and exit; with `--json` standard output still gets its one value."""
    if as_json:
        typer.echo(json.dumps({"error": sentence}))
    typer.echo(sentence, err=True)
    raise SystemExit(BAD_USAGE)


def missing_layer(error: ImportError) -> MissingLayer:
    """Say which layer a missing module belongs to and how to install it."""
    module = (error.name or str(error)).partition(".")[0]
    if module == "fsm_spec":
        return MissingLayer("this part is not installed; run: pip install 'fsm-spec[executor]'")
    for requirement in metadata.requires("fsm-spec") or []:
        name, _, marker = requirement.partition(";")
        if (
            name.casefold().replace("_", "-").startswith(module.casefold().replace("_", "-"))
            and "extra" in marker
        ):
            layer = marker.replace('"', "'").split("'")[1]
            return MissingLayer(
                f"this needs {module}, which is not installed; run: pip install 'fsm-spec[{layer}]'"
            )
    return MissingLayer(f"this needs {module}, which is not installed; run: pip install {module}")


def application(layers: Sequence[metadata.EntryPoint] | None = None) -> typer.Typer:
    """Build the application with the commands of the given layers, all installed ones by default."""
    app = typer.Typer(
        cls=Commands,
        help="Decode algorithms of LLM serving as state machines: check, draw, simulate and run one transition table.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    cli_check.register(app)
    cli_spec.register(app)
    for entry in metadata.entry_points(group=LAYERS) if layers is None else layers:
        try:
            register: Callable[[typer.Typer], None] = entry.load()
        except ImportError as error:
            _explain(app, entry.name, missing_layer(error))
        else:
            register(app)
    return app


def _explain(app: typer.Typer, name: str, reason: MissingLayer) -> None:
    """Register a command that says what must be installed before it can run."""

    def missing() -> None:
        raise reason

    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
    app.command(name, help=f"Not installed: {reason}", context_settings=anything)(missing)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fsm-spec {metadata.version('fsm-spec')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; the entry point `fsm-spec`."""
    try:
        # Commands of the core need no other layer, and start faster without.
        own = len(sys.argv) > 1 and sys.argv[1] in (*cli_check.COMMANDS, *cli_spec.COMMANDS, "--version")
        application([] if own else None)()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        # The libraries that print help end with 1 where its reader has gone, which `check` means otherwise.
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(PIPE_CLOSED)
        raise
