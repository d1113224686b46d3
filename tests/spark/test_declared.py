"""A job is declared once: both entrances, what is refused and the guide are made of it."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer.main
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.cli.errors import UsageError
from spillway.spark.jobs.job import JOBS, JSON, MASTER, Family, Job, every_job
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.option import DeclaredOption, Option, check_options, declared_in
from tools.job_tables import DOCS, row, with_tables

EVERY = {job.name: job for job in every_job()}
BOUNDED = [(job.name, option) for job in EVERY.values() for option in job.options() if option.option.least is not None]


def needed(job: Job[Any, Any]) -> list[str]:
    """Something for every option that is required."""
    return [word for option in job.options() if option.is_required for word in (f"--{option.name}", "something")]


def of_command(name: str) -> Any:
    app: Any = typer.main.get_command(make_app())
    found = app.commands["pipeline"]
    for word in name.split():
        found = found.get_command(typer.Context(found), word)
    return found


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_guides_tables_are_those_of_the_declarations(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text) == text, "python tools/job_tables.py writes them"


@pytest.mark.parametrize("name", EVERY)
def test_command_and_module_take_the_options_that_are_declared(name: str) -> None:
    job = EVERY[name]
    declared = {f"--{option.name}" for option in job.options()}
    typed = {text for parameter in of_command(name).params for text in parameter.opts} - {"--help", "-h"}
    submitted = {text for action in job.parser()._actions for text in action.option_strings} - {"--help", "-h"}
    assert typed == declared | {f"--{MASTER.name}", f"--{JSON.name}"}
    assert submitted == declared | {f"--{JSON.name}"}


@pytest.mark.parametrize(("name", "option"), BOUNDED, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize("wrong", ["below", "above", "nan"])
def test_both_entrances_refuse_what_is_out_of_bounds_with_one_sentence(
    name: str, option: DeclaredOption, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = EVERY[name]
    assert option.option.least is not None and option.option.most is not None
    text = {"below": f"{option.option.least - 1:g}", "above": f"{option.option.most + 1:.0f}", "nan": "nan"}[wrong]
    line = [*needed(job), f"--{option.name}={text}"]
    assert job.main(line) == 2
    said = capsys.readouterr().err.removeprefix(f"{name}: ").strip()
    assert said.startswith(f"{option.name}: {option.allowed()}, not ")
    refused = CliRunner().invoke(make_app(), ["pipeline", *name.split(), *line]).exception
    assert isinstance(refused, UsageError)
    assert str(refused) == f"pipeline {name}: {said}"


def test_declarations_are_loaded_without_spark() -> None:
    text = (
        "import sys; from spillway.spark.jobs.job import JOBS, find_job; jobs = [find_job(name) for name in JOBS]; "
        "print(len(jobs), 'pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(len(JOBS)), "False", "False"]


@pytest.mark.parametrize("name", EVERY)
def test_a_config_shows_none_of_its_secrets(name: str) -> None:
    job = EVERY[name]
    secrets = [option for option in job.options() if option.option.is_secret]
    required = {option.field: "something" for option in job.options() if option.is_required}
    shown = repr(job.config(**{**required, **{option.field: "hidden" for option in secrets}}))
    assert "hidden" not in shown
    hints = [option.name for option in job.options() if "connection string" in option.option.help.lower()]
    assert {option.name for option in secrets} == set(hints) - {"secret"} | (
        {"secondary"} if name == "syphon" else set()
    )


@pytest.mark.parametrize("name", ["metering", "cost"])
@pytest.mark.parametrize("entrance", ["command", "module"])
def test_an_alias_that_is_none_is_refused_by_both(name: str, entrance: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*needed(EVERY[name]), "--alias", "x"]
    said = f"{name}: --alias must be NAME=NAMESPACE, not 'x'"
    if entrance == "module":
        assert (EVERY[name].main(line), capsys.readouterr().err) == (2, f"{said}\n")
    else:
        assert str(CliRunner().invoke(make_app(), ["pipeline", *name.split(), *line]).exception) == f"pipeline {said}"


def test_a_submitted_metering_asks_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EVERY["metering"].main(["--out", str(tmp_path / "out"), "--open-day", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("metering: --open-day: only -, the broker that SPILLWAY_CONNECTION_STRING leads to")


# -- one job, small enough to see ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    to: Annotated[str, Option("NAME", "Where to.")]
    key: Annotated[str, Option("TEXT", "The key.", is_secret=True)] = field(default="", repr=False)
    pace_s: Annotated[float, Option("SECONDS", "A step takes so long.", 0.5, 90_000, more="Or `more`.")] = 1.5
    steps: Annotated[int, Option("N", "So many.", 1, 9)] = 2
    way: Annotated[Literal["there", "back"], Option("WAY", "There, or back.")] = "there"
    via: Annotated[tuple[Path, ...], Option("DIR", "Past it.", is_repeated=True)] = ()
    is_fast: Annotated[bool, Option("", "Hurry.")] = False
    clock: int = 0  # of programs


@dataclass
class Walked:
    walk: str


class Lost(Exception):
    pass


def walked(config: Walk, master: str | None) -> Walked:
    if config.to == "nowhere":
        raise Lost("there is no way")
    return Walked(repr(config))


WALK = Job("walk", "Walk.", Walk, walked, lambda summary: summary.walk, (Lost,))


def test_what_is_typed_becomes_the_fields_and_the_rest_keeps_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert WALK.main(["--to", "town", "--via", "a", "--via", "b", "--pace", "3", "--fast", "--key", "hidden"]) == 0
    made = Walk("town", "hidden", 3.0, via=(Path("a"), Path("b")), is_fast=True)
    assert capsys.readouterr().out.strip() == repr(made)
    assert WALK.main(["--to", "town", "--json"]) == 0
    assert capsys.readouterr().out.startswith('{"walk": ')


@pytest.mark.parametrize(
    ("line", "said", "status"),
    [
        (["--to", " "], "to is missing: where to", 2),
        (["--to", "x", "--pace", "0"], "pace: seconds from 0.5 to 90,000, not 0", 2),
        (["--to", "x", "--steps", "2.5"], "steps: a whole number from 1 to 9, not '2.5'", 2),
        (["--to", "x", "--steps", "Key=hidden"], "steps: a whole number from 1 to 9, not (10 characters)", 2),
        (["--to", "x", "--way", "up"], "way: there or back, not 'up'", 2),
        (["--to", "nowhere"], "there is no way", 1),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_options_name(
    line: list[str], said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert WALK.main(line) == status
    assert capsys.readouterr().err == f"walk: {said}\n"


def test_a_family_is_called_by_its_verb_and_a_job_may_end_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    there = Job("walk there", "Walk.", Walk, walked, lambda summary: summary.walk, (Lost,), status_of=lambda _: 3)
    family = Family("walk", "Walk there or back.", (there, Job("walk back", "", Walk, walked, str, (Lost,))))
    assert family.main(["there", "--to", "town"]) == 3
    assert "town" in capsys.readouterr().out
    assert family.main(["back", "--to", "nowhere"]) == 1
    assert capsys.readouterr().err == "walk back: there is no way\n"
    with pytest.raises(SystemExit, match="2"):
        family.main(["up"])
    assert "invalid choice: 'up'" in capsys.readouterr().err


def test_a_config_of_a_program_is_checked_alike() -> None:
    check_options(Walk("x"))
    with pytest.raises(OptionError, match=r"^pace: seconds from 0.5 to 90,000, not -1$"):
        check_options(Walk("x", pace_s=-1))


def test_help_and_guide_have_limits_and_default() -> None:
    pace, via = declared_in(Walk)[2], declared_in(Walk)[5]
    assert pace.sentence() == "A step takes so long. From 0.5 to 90,000; by default 1.5."
    assert row(pace) == "| `--pace SECONDS` | 1.5 | A step takes so long. Or `more`. From 0.5 to 90,000. |\n"
    assert row(via) == "| `--via DIR` | | Past it. Repeat it. |\n"


def test_a_secret_that_would_be_shown_is_no_declaration() -> None:
    @dataclass
    class Careless:
        key: Annotated[str, Option("TEXT", "The key.", is_secret=True)] = ""

    with pytest.raises(AssertionError, match="key is a secret"):
        declared_in(Careless)
