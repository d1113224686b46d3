"""`spillway`: finds the commands and makes every failure one line and an exit status.

0 done; 1 it failed; 2 an option or a configuration file is wrong; 130 interrupted. `SPILLWAY_DEBUG=1` shows the
traceback instead, for whoever is looking for a fault in spillway itself.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable

import typer

from spillway import cli
from spillway.cli.errors import CommandError

HELP = """A durable message broker that the official Azure Service Bus SDKs use unchanged.

Start one with `spillway serve --dev` and use the connection string it prints.
"""


def make_app() -> typer.Typer:
    """The command line with every command of this room."""
    app = typer.Typer(
        name="spillway",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def spillway() -> None:
        # With a callback typer keeps the command's name even where there is only one command.
        pass

    for name in sorted(module.name for module in pkgutil.iter_modules(cli.__path__)):
        if name == "app":
            continue
        command = getattr(importlib.import_module(f"spillway.cli.{name}"), "command", None)
        if command is not None:
            app.command(name.replace("_", "-"))(command)
    return app


def main() -> None:
    """The console script."""
    run(make_app())


def run(app: Callable[[], object]) -> None:
    """Call the app; leave the process with the status that its failure deserves."""
    try:
        app()
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
        if os.environ.get("SPILLWAY_DEBUG") == "1":
            raise
        text = " ".join(str(error).split())
        _say(f"{type(error).__name__}: {text} (SPILLWAY_DEBUG=1 shows where)")
        code = 1
    else:
        return
    sys.exit(code)


def _say(*lines: str) -> None:
    for line in lines:
        print(f"spillway: {line}", file=sys.stderr)
