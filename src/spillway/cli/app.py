"""`spillway`: finds the commands and makes every failure one line and an exit status.

0 done; 1 it failed; 2 an option or a configuration file is wrong; 130 interrupted. `SPILLWAY_DEBUG=1` shows the
traceback instead, for whoever is looking for a fault in spillway itself.
"""

import importlib
import os
import pkgutil
import sys
from typing import Annotated

import typer

from spillway import __version__, cli
from spillway.cli.errors import CommandError

HELP = """A durable message broker that the official Azure Service Bus SDKs use unchanged.

Start one with `spillway serve --dev` and use the connection string it prints.
"""


def make_app() -> typer.Typer:
    """The command line with every command of this room."""
    app = typer.Typer(
        name="spillway",
        help=HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain text: it can be piped, and a wrong option is one line like any other error
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def spillway(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        # With a callback typer keeps the command's name even where there is only one command.
        if version:
            print(f"spillway {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help())

    for name in sorted(module.name for module in pkgutil.iter_modules(cli.__path__)):
        if name == "app":
            continue
        module = importlib.import_module(f"spillway.cli.{name}")
        command = getattr(module, "command", None)
        if command is not None:
            app.command(name.replace("_", "-"))(command)
        group = getattr(module, "group", None)  # of several commands: `spillway NAME VERB`
        if group is not None:
            app.add_typer(group, name=name.replace("_", "-"))
    return app


def main() -> None:
    """The console script."""
    run(make_app())


def run(app: typer.Typer) -> None:
    """Call the app; leave the process with the status that its failure deserves."""
    try:
        status = app(standalone_mode=False)
        code = status if isinstance(status, int) else 0
    except CommandError as error:
        _say(*error.lines)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`spillway … | head`); Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its message is its help
            context = getattr(error, "ctx", None)
            assert context is not None, "it is raised with the group it is about"
            print(context.get_help())
            _say(_missing_text(context))
            sys.exit(2)
        if hasattr(error, "format_message"):  # the parser's: no such option, no such command, a value out of range
            _say(_usage_text(str(error.format_message()), getattr(error, "ctx", None)))
            sys.exit(2)
        if os.environ.get("SPILLWAY_DEBUG") == "1":
            raise
        text = " ".join(str(error).split())
        _say(f"{type(error).__name__}: {text} (SPILLWAY_DEBUG=1 shows where)")
        code = 1
    sys.exit(code)


def _missing_text(context: typer.Context) -> str:
    names = context.command.list_commands(context)  # type: ignore[attr-defined]
    return f"which one: {context.command_path} {' | '.join(names)}"


def _usage_text(text: str, context: typer.Context | None) -> str:
    where = "spillway" if context is None else context.command_path
    return f"{' '.join(text.split()).rstrip('.')} (see: {where} --help)"


def _say(*lines: str) -> None:
    """Print an error. Whatever was typed or stood in a file may come back in it, but no key."""
    from spillway.server.logs import redact

    for line in lines:
        print(f"spillway: {redact(line)}", file=sys.stderr)
