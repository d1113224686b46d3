"""A job, declared once. Its options are the annotated fields of its config (platform/option.py), and what else there is
to say is a `Job` at the end of its module, `JOB`; of several commands in one module a `Family` of them.

`spillway pipeline NAME` (cli/pipeline.py), the module for spark-submit (`main`) and the table in the guide
(tools/job_tables.py) are made of it. How to add one is in docs/development.md.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.option import DeclaredOption, Option, Typed, check_options, declared_in, read_all
from spillway.spark.platform.session import EMBEDDED_MASTER, missing_text

# Of `spillway pipeline`, in this order; the module of one has underscores where its name has dashes.
JOBS: Final = ("syphon", "capture", "compact", "replay", "dead-letters", "metering", "cost", "availability")


@dataclass(frozen=True)
class _OfEveryJob:
    """What a job is run with, and not its config. A master is spark-submit's own option there."""

    master: Annotated[str | None, Option("URL", "Spark master.", default=f"this process, `{EMBEDDED_MASTER}`")] = None
    is_json: Annotated[bool, Option("", "The last line on stdout is the summary as JSON.")] = False


MASTER, JSON = declared_in(_OfEveryJob)

C = TypeVar("C")
S = TypeVar("S")


class JobFailed(Exception):
    """What a job ends with instead of a summary: one line, and the exit status; 2 is the user's to mend."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Job(Generic[C, S]):
    """What can be run: by `spillway pipeline NAME`, and by spark-submit."""

    name: str
    help: str  # a sentence, and what else there is to say below an empty line
    config: type[C]  # a dataclass with annotated fields
    run_here: Callable[[C, str | None], S]  # with a config and a master; `OptionError` before Spark is started
    text_of: Callable[[S], str]  # the summary, a dataclass, for people
    errors: tuple[type[Exception], ...]  # that end it with status 1
    errors_to_mend: tuple[type[Exception], ...] = ()  # with 2, as `OptionError` does
    status_of: Callable[[S], int] = lambda _: 0  # of one that ended well

    def options(self) -> tuple[DeclaredOption, ...]:
        return declared_in(self.config)

    def run(self, typed: Mapping[str, Typed], master: str | None = None, **others: Any) -> S:
        """With what was typed, by the fields' names; `others` are fields that nobody can type. `JobFailed`."""
        make: Callable[..., C] = self.config
        to_mend: tuple[type[Exception], ...] = (OptionError, *self.errors_to_mend)
        try:
            config = make(**read_all(self.config, typed), **others)
            check_options(config)
            return self.run_here(config, master)
        except to_mend as error:
            raise JobFailed(_as_typed(error), 2) from None
        except ModuleNotFoundError as error:
            raise JobFailed(missing_text(error), 2) from None
        except self.errors as error:
            raise JobFailed(str(error), 1) from None

    def text(self, summary: Any, is_json: bool) -> str:
        return json.dumps(asdict(summary)) if is_json else self.text_of(summary)

    def parser(self) -> argparse.ArgumentParser:
        """For spark-submit, which has its own --master."""
        needed = [f"--{each.name} {each.option.metavar}" for each in self.options() if each.is_required]
        usage = " ".join([self.name, *needed, "[options]"])
        found = argparse.ArgumentParser(prog=self.name, usage=usage, description=self.help)
        for each in (*self.options(), JSON):
            _add(found, each)
        return found

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The program that spark-submit runs: what it was given, its exit status."""
        typed = vars(self.parser().parse_args(arguments))
        is_json = typed.pop(JSON.field)
        try:
            summary = self.run(typed)
        except JobFailed as failed:
            sys.stderr.write(f"{self.name}: {failed}\n")
            return failed.status
        print(self.text(summary, is_json), flush=True)
        return self.status_of(summary)


@dataclass(frozen=True)
class Family:
    """Commands of one module: `spillway pipeline NAME VERB`. Each is a job that is called `NAME VERB`."""

    name: str
    help: str
    jobs: tuple[Job[Any, Any], ...]

    def by_verb(self) -> dict[str, Job[Any, Any]]:
        return {job.name.removeprefix(f"{self.name} "): job for job in self.jobs}

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The first word says which of them."""
        words = sys.argv[1:] if arguments is None else list(arguments)
        parser = argparse.ArgumentParser(prog=self.name, description=self.help)
        parser.add_argument("command", choices=self.by_verb(), help="with --help behind it: its options")
        return self.by_verb()[parser.parse_args(words[:1]).command].main(words[1:])


def find_job(name: str) -> Job[Any, Any] | Family:
    """One of `JOBS`; only its module is loaded, and with it nothing of Spark."""
    found = importlib.import_module(f"spillway.spark.jobs.{name.replace('-', '_')}").JOB
    assert isinstance(found, Job | Family) and found.name == name, f"{name} is declared as another job"
    return found


def every_job() -> list[Job[Any, Any]]:
    """All that can be run, those of families one by one."""
    found = [find_job(name) for name in JOBS]
    return [job for each in found for job in (each.jobs if isinstance(each, Family) else (each,))]


def _as_typed(error: Exception) -> str:
    """The names that options have in programs, as people type them."""
    text = str(error).replace("secretName=", "")
    return text.replace("secretName", "--secret").replace("connectionString", "--connection-string")


def _add(parser: argparse.ArgumentParser, option: DeclaredOption) -> None:
    names: dict[str, Any] = {"dest": option.field, "help": option.sentence().replace("%", "%%")}
    if option.is_flag:
        parser.add_argument(f"--{option.name}", action="store_true", **names)
        return
    if option.option.alone:
        names |= {"nargs": "?", "const": option.option.alone}
    action = "append" if option.option.is_repeated else "store"
    metavar = option.option.metavar
    parser.add_argument(f"--{option.name}", action=action, required=option.is_required, metavar=metavar, **names)
