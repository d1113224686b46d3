"""A job on Spark as a command: its options and help are those that it declares (spark/jobs/job.py)."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.parts.pipeline_availability import say
from spillway.cli.parts.pipeline_open_days import brokers_of

if TYPE_CHECKING:
    from spillway.spark.jobs.job import Job
    from spillway.spark.platform.option import DeclaredOption

# What only a command can do for a job: fields of its config that are no options, and a summary for a terminal.
ONLY_HERE: Final[Mapping[str, Mapping[str, Any]]] = {"metering": {"find_brokers": brokers_of}}
SHOWN: Final[Mapping[str, Callable[[Any], None]]] = {"availability": say}


def command_of(job: "Job[Any, Any]") -> Callable[..., None]:
    """A function with the job's options as its parameters, as the parser reads commands."""
    from spillway.spark.jobs.job import JSON, MASTER

    def command(**typed: Any) -> None:
        master, is_json = typed.pop(MASTER.field), typed.pop(JSON.field)
        summary = run(job, typed, master)
        if is_json or job.name not in SHOWN:
            print(job.text(summary, is_json))
        else:
            SHOWN[job.name](summary)
        if status := job.status_of(summary):
            raise typer.Exit(status)

    parameters = [_parameter(each) for each in (*job.options(), MASTER, JSON)]
    command.__doc__ = job.help
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def run(job: "Job[Any, Any]", typed: Mapping[str, Any], master: str | None) -> Any:
    from spillway.spark.jobs.job import JobFailed

    try:
        return job.run(typed, master, **ONLY_HERE.get(job.name, {}))
    except JobFailed as failed:
        kind = UsageError if failed.status == UsageError.exit_code else CommandError
        raise kind(f"pipeline {job.name}: {failed}") from None
    except CommandError as error:  # of a broker that is asked before Spark is started
        raise UsageError(*(f"pipeline {job.name}: {line}" for line in error.lines)) from None


def _parameter(option: "DeclaredOption") -> inspect.Parameter:
    metavar = option.option.metavar or None
    about = typer.Option(f"--{option.name}", metavar=metavar, help=option.sentence(), show_default=False)
    kind: Any = bool if option.is_flag else list[str] if option.option.is_repeated else str
    default: Any = inspect.Parameter.empty
    if not option.is_required:
        kind, default = (bool, False) if option.is_flag else (kind | None, None)
    return inspect.Parameter(
        option.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about]
    )
