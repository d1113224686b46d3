"""`spillway pipeline`: the jobs on Spark, embedded in this process. Each is declared in its own module, and a command
is made of that when it is asked for: `spillway --help` loads none of them.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from spillway import install_hint
from spillway.cli.errors import UsageError
from spillway.cli.parts.pipeline_job import command_of
from spillway.cli.parts.pipeline_what_if import what_if


class Jobs(TyperGroup):
    """The commands that stand here, and one for each job."""

    def list_commands(self, ctx: Any) -> list[str]:
        from spillway.spark.jobs.job import JOBS

        return [*JOBS, *(name for name in self.commands if name not in JOBS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from spillway.spark.jobs.job import JOBS

        # One that nobody knows loads all of them: the parser says which of the commands come near.
        for name in [cmd_name] if cmd_name in {*JOBS, *self.commands} else JOBS:
            if name not in self.commands:
                self.commands[name] = self._made(name)
        return self.commands.get(cmd_name)

    def _made(self, name: str) -> Any:
        from spillway.spark.jobs.job import Family, find_job

        try:
            found = find_job(name)
        except ImportError as error:
            raise UsageError(f"pipeline: {error}: {install_hint('spark')}") from None
        if not isinstance(found, Family):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name)(command_of(found))
            return typer.main.get_command(app)
        app = typer.Typer(name=name, help=found.help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
        app.callback()(lambda: None)  # with one, a single command keeps its name
        for verb, job in found.by_verb().items():
            app.command(verb)(command_of(job))
        return typer.main.get_command(app)


group = typer.Typer(no_args_is_help=True, cls=Jobs)


@group.callback(
    help=f"The jobs on Spark: they run in this process, or by spark-submit on a cluster ({install_hint('spark')})."
)
def pipeline() -> None:
    pass


group.command("what-if")(what_if)
