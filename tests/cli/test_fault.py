"""`spillway fault`: what it plants, what it prints, what it refuses."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from spillway.cli.app import main
from spillway.client import NotAllowed
from tests.wire.live import LiveBroker


class Done(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path_factory.mktemp("tls"))
    yield live
    live.close()


@pytest.fixture
def fault(broker: LiveBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("SPILLWAY_CONNECTION_STRING", broker.connection_string)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["spillway", "fault", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Done(int(left.value.code or 0), said.out, said.err)

    return run


def told(fault: Command, *arguments: str) -> Any:
    done = fault(*arguments, "--json")
    assert (done.status, done.err) == (0, "")
    return json.loads(done.out)


def test_faults_are_added_listed_removed_and_cleared_in_words(broker: LiveBroker, fault: Command) -> None:
    queue = broker.queue()
    where = ["--entity", queue, "--operation", "send", "--operation", "settle"]
    how = [
        "--delay",
        "500ms",
        "--duration",
        "2m",
        "--after",
        "2",
        "--count",
        "9",
        "--probability",
        "0.5",
        "--seed",
        "7",
    ]
    details = "delay 0.5 s, duration 120 s, after 2, count 9, probability 0.5, seed 7"
    shown = f"Fault 1: slow on send, settle of {queue} ({details}): struck 0 of 0"
    assert fault("add", "slow", *where, *how) == (0, shown + "\n", "")
    assert fault("add", "drop", "--entity", "typo", "--operation", "send").out.splitlines() == [
        "Fault 2: drop on send of typo: struck 0 of 0",
        "There is no entity 'typo' yet: the fault waits for one.",
    ]
    assert fault("list").out.splitlines()[0] == shown
    assert fault("remove", "2") == (0, "Removed: Fault 2: drop on send of typo: struck 0 of 0\n", "")
    assert fault("clear") == (0, "Removed 1 fault.\n", "")
    assert fault("list") == (0, "No faults are planted.\n", "")


def test_and_in_json(broker: LiveBroker, fault: Command) -> None:
    words = ["refuse", "--condition", "amqp:not-allowed", "--text", "No.", "--operation", "send", "--count", "1"]
    report = told(fault, "add", *words)
    with pytest.raises(NotAllowed, match="No\\."):
        broker.send(broker.queue(), "x")
    assert (report["kind"], report["path"], report["text"]) == ("refuse", "*", "No.")
    (listed,) = told(fault, "list")["faults"]
    assert (listed["number"], listed["state"], listed["hit"]) == (report["number"], "spent", 1)
    assert told(fault, "remove", str(report["number"]))["hit"] == 1
    assert told(fault, "clear") == {"removed": 0}


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("add", "nonsense"), 2, "'nonsense' is no kind of fault; there are server-busy,"),
        (("add", "lock-lost", "--operation", "send"), 2, "A fault 'lock-lost' cannot befall send:"),
        (("add", "slow"), 2, "spillway: --delay is missing: for how long 'slow' is."),
        (("add", "slow", "--delay", "3d"), 2, "spillway: --delay 3d: at most 15m"),
        (("add", "restart"), 2, "--duration is missing"),
        (("add", "drop", "--probability", "7"), 2, "spillway: --probability is above 0"),
        (("add", "slow", "--delay", "soon"), 2, "soon: must be a duration above zero, like 90s"),
        (("remove", "77"), 1, "There is no fault 77."),
    ],
)
def test_what_cannot_be_is_one_line(fault: Command, arguments: tuple[str, ...], status: int, line: str) -> None:
    done = fault(*arguments)
    assert (done.status, done.out) == (status, "")
    (only,) = done.err.splitlines()
    assert only.startswith("spillway: ")
    assert line in only
