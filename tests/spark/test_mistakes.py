"""What a user has to mend, over all jobs and both their entrances: status 2, one line, and Spark is not started."""

import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.cli.errors import CommandError
from spillway.client import OutgoingMessage, connect
from spillway.spark.jobs.job import every_job
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.session import check_spark
from spillway.spark.source.data_source import check_entities
from spillway.spark.source.leftovers import Leftovers
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus, run
from tests.spark.event_files import Writer
from tests.spark.ledgers import write_sealed
from tests.spark.test_charges import row

# One word, or two where a job has several commands.
JOBS = tuple(job.name for job in every_job())
KEY = "bm90IHRoZSBrZXkgb2YgYW55Ym9keSwgMzIgYnl0ZXM="
Typed = list[str]


class Places:
    """Options that are right, of every job, and what is put in their place."""

    def __init__(self, bus: Bus, directory: Path, unreachable: str) -> None:
        self.directory = directory
        self.queue = bus.queue()
        self.detects = bus.queue(requires_duplicate_detection=True)
        self.subscription = f"{bus.topic('audit')}/subscriptions/audit"
        good = bus.broker.connection_string
        self.good = self.secret("good", good)
        self.wrong = self.secret("wrong", re.sub("SharedAccessKey=[^;]+", f"SharedAccessKey={KEY}", good))
        self.away = self.secret("away", unreachable)
        (directory / "file").write_text("in the way")
        self.blocked = str(directory / "file" / "out")
        (directory / "taken").mkdir()
        (directory / "taken" / "other").write_text("somebody else's")
        self.taken = str(directory / "taken")
        self.lake = directory / "lake"
        (self.lake / "_spillway").mkdir(parents=True)
        (self.lake / "_spillway" / "about.json").write_text('{"job": "capture", "format": 2}')
        write_sealed(directory / "data", [row("orders", "send", 1)])
        (directory / "metered" / "metered" / "day=2027-01-01").mkdir(parents=True)
        Writer(directory / "events", "p1")

    def secret(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return f"file:{path}"

    def options(self, job: str, **others: str) -> Typed:
        """All that a job needs; `others` are put in place of one, or added."""
        out = str(self.directory / f"out of {job}")
        given = {
            "syphon": {"primary": self.good, "secondary": self.good},
            "capture": {"secret": self.good, "entity": self.queue, "out": out},
            "replay": {"secret": self.good, "captured": str(self.lake), "to": self.queue},
            "metering": {"ledger": f"east={self.directory / 'data'}", "out": out},
            "cost": {"metered": str(self.directory / "metered"), "out": out},
            "compact": {"captured": str(self.lake)},
            "availability": {"events": str(self.directory / "events"), "out": out},
            "dead-letters show": {"secret": self.good, "entity": self.queue},
            "dead-letters resubmit": {"secret": self.good, "entity": self.queue, "checkpoint": out},
            "dead-letters purge": {"secret": self.good, "entity": self.queue},
        }[job]
        return [word for name, value in {**given, **others}.items() for word in (f"--{name}", value)]


def module_of(job: str) -> str:
    return f"spillway.spark.jobs.{job.split()[0].replace('-', '_')}"


MISTAKES: dict[str, tuple[str, Callable[[Places], dict[str, str]], str]] = {
    # job and what is wrong: what is typed instead, and what is said
    "capture, unknown entity": ("capture", lambda at: {"entity": "nowhere"}, "there is no entity 'nowhere'"),
    "capture, wrong key": ("capture", lambda at: {"secret": at.wrong}, "the key or token is not good for"),
    "capture, unreachable host": ("capture", lambda at: {"secret": at.away}, "127.0.0.1"),
    "capture, no such secret": ("capture", lambda at: {"secret": "env:NOT_THERE"}, "no environment variable NOT_THERE"),
    "capture, bad entity": ("capture", lambda at: {"entity": "a,,b"}, "a path is empty"),
    "capture, out is blocked": ("capture", lambda at: {"out": at.blocked}, "Not a directory"),
    "capture, out is another's": ("capture", lambda at: {"out": at.taken}, "holds something else"),
    "capture, checkpoint is another's": ("capture", lambda at: {"checkpoint": at.taken}, "holds something else"),
    "replay, unknown entity": ("replay", lambda at: {"to": "nowhere"}, "there is no entity 'nowhere'"),
    "replay, wrong key": ("replay", lambda at: {"secret": at.wrong}, "the key or token is not good for"),
    "replay, unreachable host": ("replay", lambda at: {"secret": at.away}, "127.0.0.1"),
    "replay, bad day": ("replay", lambda at: {"day": "yesterday"}, "day: 2026-11-16, or"),
    "replay, nothing captured": ("replay", lambda at: {"captured": at.taken}, "no capture has written there"),
    "replay, checkpoint is blocked": ("replay", lambda at: {"checkpoint": at.blocked}, "Not a directory"),
    "syphon, wrong key": ("syphon", lambda at: {"secondary": at.wrong}, "the secondary namespace"),
    "syphon, secondary unreachable": ("syphon", lambda at: {"secondary": at.away}, "the secondary namespace"),
    "syphon, primary unreachable": ("syphon", lambda at: {"primary": at.away}, "the primary namespace cannot be"),
    "syphon, bad ttl": ("syphon", lambda at: {"ttl": "never"}, "restart"),
    "syphon, checkpoint is blocked": ("syphon", lambda at: {"checkpoint": at.blocked}, "is a file"),
    "syphon, events are blocked": ("syphon", lambda at: {"events": at.blocked}, "is a file"),
    "metering, no ledger": ("metering", lambda at: {"ledger": at.blocked}, "is no directory"),
    "metering, out is blocked": ("metering", lambda at: {"out": at.blocked}, "is a file"),
    "metering, out is another's": ("metering", lambda at: {"out": at.taken}, "holds something else"),
    "cost, nothing metered": ("cost", lambda at: {"metered": at.taken}, "has no metered days"),
    "cost, bad month": ("cost", lambda at: {"month": "May"}, "must be like 2027-01"),
    "cost, bad prices": ("cost", lambda at: {"prices": "nowhere"}, "nowhere"),
    "cost, out is blocked": ("cost", lambda at: {"out": at.blocked}, "is a file"),
    "compact, nothing captured": ("compact", lambda at: {"captured": at.taken}, "no capture has written there"),
    "compact, bad day": ("compact", lambda at: {"day": "May"}, "day: "),
    "availability, no events": ("availability", lambda at: {"events": at.blocked}, "--events"),
    "availability, out is blocked": ("availability", lambda at: {"out": at.blocked}, "is a file"),
    "availability, out is another's": ("availability", lambda at: {"out": at.taken}, "holds something else"),
    "availability, report is blocked": ("availability", lambda at: {"report": f"{at.blocked}/page.html"}, "is a file"),
    "show, unknown entity": ("dead-letters show", lambda at: {"entity": "nowhere"}, "no entity 'nowhere/$dead"),
    "show, wrong key": ("dead-letters show", lambda at: {"secret": at.wrong}, "the key or token is not good for"),
    "show, wrong key for all": ("dead-letters show", lambda at: {"secret": at.wrong, "entity": "*"}, "right Manage"),
    "show, unreachable host": ("dead-letters show", lambda at: {"secret": at.away}, "127.0.0.1"),
    "show, all unreachable": ("dead-letters show", lambda at: {"secret": at.away, "entity": "*"}, "127.0.0.1"),
    "show, bad by": ("dead-letters show", lambda at: {"by": "weather"}, "by: some of reason, entity, age"),
    "show, page is blocked": ("dead-letters show", lambda at: {"html": f"{at.blocked}/page.html"}, "is a file"),
    "resubmit, no checkpoint": ("dead-letters resubmit", lambda at: {"checkpoint": ""}, "checkpoint is missing"),
    "resubmit, checkpoint is blocked": ("dead-letters resubmit", lambda at: {"checkpoint": at.blocked}, "Not a dir"),
    "resubmit, checkpoint is another's": ("dead-letters resubmit", lambda at: {"checkpoint": at.taken}, "something el"),
    "resubmit, to nowhere": ("dead-letters resubmit", lambda at: {"to": "nowhere"}, "there is no entity 'nowhere'"),
    "resubmit, of a subscription": ("dead-letters resubmit", lambda at: {"entity": at.subscription}, "say --to "),
    "resubmit, bad set": ("dead-letters resubmit", lambda at: {"set": "colour='red'"}, "no 'colour' to change"),
    "resubmit, bad id": ("dead-letters resubmit", lambda at: {"message-id": "old"}, "message-id: auto or keep or new"),
    "resubmit, bad unsure": ("dead-letters resubmit", lambda at: {"unsure": "hope"}, "unsure: keep or send"),
    "resubmit, id that is dropped": (
        "dead-letters resubmit", lambda at: {"message-id": "keep", "to": at.detects}, "drops duplicates, and would",
    ),
    "purge, unknown entity": ("dead-letters purge", lambda at: {"entity": "nowhere"}, "there is no entity 'nowhere/$d"),
    "purge, bad rate": ("dead-letters purge", lambda at: {"rate": "0.01"}, "rate: messages a second, from 0.1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        at = f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]}"
        away = f"{at};SharedAccessKeyName=k;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        yield Places(bus, tmp_path_factory.mktemp("mistakes"), away)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process; those that are started by a test say themselves that they start it."""

    def started(*given: object, **named: object) -> NoReturn:
        raise AssertionError("Spark was started")

    for job in JOBS:
        monkeypatch.setattr(f"{module_of(job)}.build_session", started)


@pytest.mark.parametrize("case", MISTAKES)
def test_a_command_ends_with_status_2_and_one_line_before_spark_is_started(places: Places, case: str) -> None:
    job, wrong, said = MISTAKES[case]
    result = CliRunner().invoke(make_app(), ["pipeline", *job.split(), *places.options(job, **wrong(places))])
    assert isinstance(result.exception, CommandError), (result.exception, result.output)
    assert result.exception.exit_code == 2
    (line,) = result.exception.lines
    assert said in line
    assert "\n" not in line
    assert KEY not in line


@pytest.mark.parametrize("case", MISTAKES)
def test_a_module_ends_with_status_2_and_one_line_before_spark_is_started(
    places: Places, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job, wrong, said = MISTAKES[case]
    main: Any = importlib.import_module(module_of(job)).main
    try:
        status = main([*job.split()[1:], *places.options(job, **wrong(places))])
    except SystemExit as ended:  # an option that is told by its name alone
        status = ended.code
    err = capsys.readouterr().err
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert KEY not in err


def test_a_broker_that_is_away_is_said_before_spark_is_started(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_CONNECTION_STRING", Path(places.away.removeprefix("file:")).read_text())
    words = ["pipeline", "metering", *places.options("metering"), "--open-day"]
    result = CliRunner().invoke(make_app(), [*words, "-"])
    assert isinstance(result.exception, CommandError), (result.exception, result.output)
    assert result.exception.exit_code == 2
    assert "127.0.0.1" in str(result.exception)
    assert importlib.import_module("spillway.spark.jobs.metering").main(words[2:]) == 2
    err = capsys.readouterr().err
    assert "127.0.0.1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("job", JOBS)
def test_a_master_that_is_none_is_said_by_every_command(places: Places, job: str) -> None:
    result = CliRunner().invoke(make_app(), ["pipeline", *job.split(), *places.options(job, master="everywhere")])
    assert isinstance(result.exception, CommandError), (result.exception, result.output)
    assert result.exception.exit_code == 2
    assert "master 'everywhere': local[*,4]" in str(result.exception)


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*,4]", "spark://h:7077", "k8s://https://h", "yarn", None]
)
def test_masters_that_spark_knows_are_not_refused(master: str | None) -> None:
    check_spark(master)


def test_without_spark_every_entrance_of_every_job_says_what_to_install(places: Places, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    text = "raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n"
    (tmp_path / "pyspark" / "__init__.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    started = {}
    for job in JOBS:
        for entrance in ([module_of(job), *job.split()[1:]], ["spillway", "pipeline", *job.split()]):
            command = [sys.executable, "-m", *entrance, *places.options(job)]
            started[job, entrance[0]] = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
    for name, process in started.items():
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2, (name, err)
        assert "pip install 'spillway-servicebus[spark]'" in err, (name, err)
        assert len(err.splitlines()) == 1, (name, err)


# -- what is said ---------------------------------------------------------------------------------------------------


def test_an_entity_with_sessions_names_the_option(places: Places, bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    result = CliRunner().invoke(make_app(), ["pipeline", "capture", *places.options("capture", entity=queue)])
    assert isinstance(result.exception, CommandError)
    assert f"'{queue}' requires sessions: set sessions to * or to their ids, for a job --sessions '*'" in str(
        result.exception
    )
    with pytest.raises(NamespaceError, match="does not require sessions: leave the option sessions out"):
        check_entities(read_options({**bus.options, "entity": bus.queue(), "sessions": "*", "mode": "peeklock"}))


def test_deferred_messages_are_in_nobodys_lock_however_many_they_are(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [OutgoingMessage(b"x") for _ in range(1_200)])

    async def defer_all() -> None:
        async with await connect(bus.broker.connection_string) as connection:
            receiver = await connection.receiver(queue)
            count = 0
            while count < 1_200:
                for message in await receiver.receive(200, 5.0):
                    await receiver.defer(message)
                    count += 1

    run(defer_all())
    leftovers = Leftovers(read_options({**bus.options, "entity": queue, "mode": "peeklock"}))
    assert leftovers.left() == []
    bus.send(queue, [OutgoingMessage(b"later")])
    assert leftovers.left() == []  # it came after them
    with bus.locked_by_another(queue, 1):
        assert Leftovers(read_options({**bus.options, "entity": queue, "mode": "peeklock"})).left() == [queue]


def test_what_fails_before_spark_is_an_option_error_of_one_line() -> None:
    from spillway.spark.platform.preflight import to_mend

    with pytest.raises(OptionError, match="^first$"), to_mend(RuntimeError):
        raise RuntimeError("first\nsecond")
