"""`spillway store`: what is wrong with a store, and what was set apart."""

import json
from pathlib import Path

import apsw
import pytest
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.cli.errors import CommandError, UsageError
from spillway.model.records import Turn
from spillway.store.directory import DataDirectory
from spillway.store.sqlite import open_sqlite_journal
from tests.store.listening import Desk, added, counters, everything, queue_put

RUNNER = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A namespace whose second message is damaged, and was met."""
    data = tmp_path / "data"
    desk = opened(data)
    turn = Turn(1)
    turn.add([queue_put(1), *(added(1, number) for number in (1, 2, 3))])
    turn.counters[1] = counters(3, 3)
    desk.submit(turn)
    desk.journal.close()
    connection = apsw.Connection(str(data / "shop" / "journal.db"))
    connection.execute("UPDATE message SET raw = x'00ff' WHERE key & 3 = 2")
    connection.close()
    return data


def opened(data: Path) -> Desk:
    journal = open_sqlite_journal(DataDirectory(data), "shop")
    journal.recover()
    return Desk(journal).start()


def run(*arguments: str) -> tuple[int, str]:
    done = RUNNER.invoke(make_app(), ["store", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_check_says_what_is_wrong_and_with_json_what_is_there(data: Path) -> None:
    status, said = run("check", "--data", str(data))
    assert (status, said) == (1, "shop: message 2 of queue-1: its checksum does not hold\n")
    status, said = run("check", "--data", str(data), "--json", "--namespace", "Shop")
    found = json.loads(said)
    assert (status, found["namespace"], len(found["findings"])) == (1, "shop", 1)
    (row,) = found["rows"]
    assert row["columns"]["raw"] == {"base64": "AP8="}
    assert not (data / "shop" / "set-apart.jsonl").exists()  # looking changes nothing


def test_a_sound_store_is_said_to_be(data: Path) -> None:
    connection = apsw.Connection(str(data / "shop" / "journal.db"))
    connection.execute("DELETE FROM message")
    connection.execute("DELETE FROM entity")
    connection.close()
    assert run("check", "--data", str(data)) == (0, "shop: all is well\n")


def test_what_was_set_apart_can_be_read_out_while_a_broker_runs(data: Path) -> None:
    desk = opened(data)
    assert run("set-apart", "--data", str(data)) == (0, "")
    desk.ask(everything(1))
    assert run("set-apart", "--data", str(data)) == (0, "shop: message 2 of queue-1: its checksum does not hold\n")
    status, said = run("set-apart", "--data", str(data), "--json")
    row = json.loads(said)
    assert (status, row["namespace"], row["table"], row["entity"], row["number"]) == (
        0,
        "shop",
        "message",
        "queue-1",
        2,
    )
    with pytest.raises(CommandError, match="in use by process"):
        run("check", "--data", str(data))
    desk.journal.close()


def test_a_directory_without_a_store_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has no namespace"):
        run("check", "--data", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="--namespace other"):
        run("set-apart", "--data", str(data), "--namespace", "other")
