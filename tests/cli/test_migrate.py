"""`spillway migrate --to sqlite`: what an earlier version finds."""

import json
from pathlib import Path

import apsw
import pytest
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.cli.errors import CommandError
from spillway.model import limits
from spillway.store.carry_over import former_schema
from spillway.store.directory import DataDirectory
from spillway.store.logged import LoggedJournal
from spillway.store.replay import log_directory
from spillway.store.statements import STATEMENTS
from tests.contract.kinds import as_after_a_kill
from tests.store.listening import Desk, added, everything, numbers, queue_put

RUNNER = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two namespaces of a broker that was killed."""
    data = tmp_path / "data"
    for name in ("shop", "other"):
        path = tmp_path / "live" / name / "journal.db"
        path.parent.mkdir(parents=True)
        desk = opened(path)
        desk.submit_records(queue_put(1), *(added(1, number) for number in (1, 2, 3)))
        desk.settle()
        as_after_a_kill(path, data / name)
        desk.journal.close()
    return data


def opened(path: Path) -> Desk:
    journal = LoggedJournal(path)
    journal.recover()
    return Desk(journal).start()


def run(*arguments: str) -> str:
    done = RUNNER.invoke(make_app(), ["migrate", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_everything_is_in_a_file_of_the_former_format_and_the_log_is_gone(data: Path) -> None:
    said = run("--to", "sqlite", "--data", str(data)).splitlines()
    assert said == [
        f"{name}: format 5, without a log (1 frames of it were put into the file)" for name in ("other", "shop")
    ]
    for name in ("shop", "other"):
        path = data / name / "journal.db"
        assert not log_directory(path).exists()
        connection = apsw.Connection(str(path))
        assert int(connection.pragma("user_version")) == 5
        assert list(connection.execute(STATEMENTS["select_schema"])) == former_schema(5)
        assert connection.execute("SELECT format FROM meta").fetchall() == [(5,)]
        assert connection.execute("SELECT count(*) FROM message").fetchall() == [(3,)]
        connection.close()


def test_the_way_there_again_is_a_start(data: Path) -> None:
    (line,) = run("--to", "sqlite", "--data", str(data), "--namespace", "shop", "--json").splitlines()
    assert json.loads(line) == {"namespace": "shop", "format": 5, "frames": 1}
    desk = opened(data / "shop" / "journal.db")
    assert numbers(desk.ask(everything(1))) == [1, 2, 3]
    desk.journal.close()
    (line,) = run("--to", "sqlite", "--data", str(data), "--namespace", "shop", "--json").splitlines()
    assert json.loads(line)["frames"] == 0, "it was stopped in order"


def test_numbers_that_the_killed_broker_may_have_shown_are_left_out(data: Path) -> None:
    """An earlier version would give them again, and so would this one: the file does not say how the life ended."""
    path = data / "shop" / "journal.db"
    run("--to", "sqlite", "--data", str(data))
    for _ in range(2):  # once, not each time
        journal = LoggedJournal(path)
        found = {row.put.path: row.counters.last_sequence_number for row in journal.recover().entities}
        Desk(journal).start().journal.close()
        assert set(found.values()) == {limits.NUMBERS_SKIPPED}
        run("--to", "sqlite", "--data", str(data))


def test_a_directory_in_use_is_refused(data: Path) -> None:
    directory = DataDirectory(data)
    with pytest.raises(CommandError, match="in use by process"):
        run("--to", "sqlite", "--data", str(data))
    directory.close()


def test_another_form_is_refused_with_what_there_is() -> None:
    done = RUNNER.invoke(make_app(), ["migrate", "--to", "postgres"])
    assert done.exit_code == 2 and "sqlite" in done.output
