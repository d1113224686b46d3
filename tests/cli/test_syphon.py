"""`spillway syphon`, between two real brokers."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from spillway.client import OutgoingMessage
from spillway.client.faults import Fault, RemoteFaults
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog
from tests.tools.broker_process import PACKAGE_PARENT


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    both = Namespaces(tmp_path_factory.mktemp("namespaces"))
    yield both
    both.close()


def command(namespaces: Namespaces, *options: str, secondary: str | None = None) -> tuple[list[str], dict[str, str]]:
    """The secrets are in the environment, not among the options."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE_PARENT),
        "PYTHONUNBUFFERED": "1",
        "HOME_STRING": namespaces.primary.connection_string,
        "AWAY_STRING": secondary or namespaces.secondary.connection_string,
    }
    line = [
        sys.executable,
        "-m",
        "spillway",
        "syphon",
        "--primary",
        "env:HOME_STRING",
        "--secondary",
        "env:AWAY_STRING",
    ]
    return [*line, *options], environment


def syphon(
    namespaces: Namespaces, *options: str, secondary: str | None = None, timeout_s: float = 90.0
) -> subprocess.CompletedProcess[str]:
    line, environment = command(namespaces, *options, secondary=secondary)
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.05)


@pytest.mark.contract("F8")
def test_the_backlog_comes_home_and_the_command_says_how_much(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces, queues=3)
    queue = backlog.destination()
    ids = backlog.fill(queue, 900)
    done = syphon(namespaces, "--namespace-name", backlog.name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("900 messages came home from 3 backlog queues in ")
    assert Counter(backlog.ids_at(queue)) == Counter(ids)
    assert backlog.left() == 0
    again = syphon(namespaces, "--namespace-name", backlog.name, "--once")
    assert (again.returncode, again.stdout.split(" in ")[0]) == (0, "0 messages came home from 3 backlog queues")


def test_as_json_every_change_is_a_line_and_the_last_one_is_the_summary(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 20)
    backlog.fill("nowhere", 3, "lost")
    backlog.put([OutgoingMessage(b"x", message_id="malformed")])
    done = syphon(namespaces, "--namespace-name", backlog.name, "--json", "--patience", "0")
    assert (done.returncode, done.stderr) == (1, "")
    *changes, summary = lines_of(done.stdout)
    assert changes[0] == {"event": "begun", "messages": 24}
    moved = sum(line["messages"] for line in changes if line["event"] == "moved")
    kept = {line["destination"]: line["messages"] for line in changes if line["event"] == "kept"}
    assert (moved, kept) == (20, {"nowhere": 3})
    assert {line["reason"] for line in changes if line["event"] == "dead-lettered"} == {"PathMissing"}
    assert {name: summary[name] for name in ("event", "moved", "kept", "dead_lettered", "before", "after")} == {
        "event": "summary",
        "moved": 20,
        "kept": 3,
        "dead_lettered": 1,
        "before": 24,
        "after": 3,
    }


def test_what_was_kept_is_said_with_the_reason_and_the_status_is_1(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    backlog.fill("nowhere", 4)
    done = syphon(namespaces, "--namespace-name", backlog.name, "--patience", "0")
    assert done.returncode == 1
    assert "0 messages came home" in done.stdout
    assert "4 messages left in the backlog" in done.stdout
    assert "4 kept: nowhere: amqp:not-found" in done.stdout
    assert "TrackingId" not in done.stdout


def test_with_a_key_that_may_only_listen_the_queues_are_looked_for_by_name(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces, queues=2)
    queue = backlog.destination()
    ids = backlog.fill(queue, 30)
    done = syphon(
        namespaces,
        "--namespace-name",
        backlog.name,
        "--backlog-queues",
        "4",
        secondary=namespaces.secondary_with("listens"),
    )
    assert done.returncode == 0, done.stderr
    assert "30 messages came home from 2 backlog queues" in done.stdout
    assert Counter(backlog.ids_at(queue)) == Counter(ids)


def test_without_a_backlog_queue_it_says_what_may_be_wrong(namespaces: Namespaces) -> None:
    done = syphon(namespaces, "--namespace-name", "nobody")
    assert done.returncode == 0
    assert "there is no backlog queue of 'nobody'" in done.stderr
    assert "--namespace-name" in done.stderr


def test_in_a_terminal_a_bar_shows_how_far_it_is(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 50)
    line, environment = command(namespaces, "--namespace-name", backlog.name)
    ours, its = pty.openpty()
    with RemoteFaults(namespaces.primary.connection_string).planted(Fault("slow", queue, ["send"], delay_ms=1_000)):
        process = subprocess.Popen(
            line, env={**environment, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=its, text=True
        )
        out, _ = process.communicate(timeout=60)
    os.close(its)
    shown = os.read(ours, 100_000).decode(errors="replace")
    os.close(ours)
    assert process.returncode == 0
    assert "coming home" in shown and "/50" in shown
    assert out.startswith("50 messages came home")


class Watching:
    """The command while it runs."""

    def __init__(self, namespaces: Namespaces, *options: str, secondary: str | None = None) -> None:
        line, environment = command(namespaces, "--watch", "--json", *options, secondary=secondary)
        self.process = subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until(self, event: str, said: str = "") -> dict[str, Any]:
        for line in self._out:
            values: dict[str, Any] = json.loads(line)
            if values["event"] == event and said in line:
                return values
        raise AssertionError(f"it ended without {event}: {self.process.stderr and self.process.stderr.read()}")

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def stop(self, number: int = signal.SIGINT) -> tuple[int, dict[str, Any], str]:
        began_s = time.monotonic()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        assert time.monotonic() - began_s < 10
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        return self.process.returncode, summary, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_brings_home_what_comes_and_ends_in_order_when_it_is_told(namespaces: Namespaces, number: int) -> None:
    backlog = Backlog(namespaces, queues=2)
    queue = backlog.destination()
    first = backlog.fill(queue, 10, "first")
    watching = Watching(namespaces, "--namespace-name", backlog.name)
    until(lambda: Counter(backlog.ids_at(queue)) == Counter(first))
    later = backlog.fill(queue, 10, "later")
    until(lambda: Counter(backlog.ids_at(queue)) == Counter(first + later))
    status, summary, err = watching.stop(number)
    assert (status, err) == (0, "")
    assert (summary["event"], summary["moved"], summary["kept"], summary["queues"]) == ("summary", 20, 0, 2)


def test_a_watch_waits_for_backlog_queues_and_says_what_it_keeps(namespaces: Namespaces) -> None:
    name = namespaces.unique_name()
    watching = Watching(namespaces, "--namespace-name", name)
    watching.until("note", "no backlog queue of")
    backlog = Backlog(namespaces, name=name)
    backlog.fill("nowhere", 2)
    kept = watching.until("kept")
    assert (kept["destination"], kept["messages"]) == ("nowhere", 2)
    status, summary, _ = watching.stop()
    assert (status, summary["kept"]) == (1, 2)


def test_ctrl_c_in_the_middle_ends_in_order_and_leaves_nothing_locked(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    ids = backlog.fill(queue, 12_000, size_bytes=10)  # thousands more than are on their way at a time
    faults = RemoteFaults(namespaces.primary.connection_string)
    with faults.planted(Fault("slow", queue, ["send"], delay_ms=2_000)):
        line, environment = command(namespaces, "--namespace-name", backlog.name, "--json")
        process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "begun"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    summary = json.loads(out.splitlines()[-1])
    assert (summary["event"], process.returncode) == ("summary", 1)
    assert summary["after"] >= 1_000
    assert len(backlog.ids_at(queue)) == 12_000 - summary["after"]
    done = syphon(namespaces, "--namespace-name", backlog.name)  # at once: no lock is waited for
    assert done.returncode == 0
    assert "locked by somebody" not in done.stderr
    assert Counter(backlog.ids_at(queue)) == Counter(ids)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--once", "--watch"], "--once and --watch"),
        (["--ttl", "never"], "--ttl: restart or remaining"),
        (["--primary-ca-file", "/no/such/file"], "--primary-ca-file: there is no file"),
        (["--primary", "env:NO_SUCH_VARIABLE"], "--primary: env:NO_SUCH_VARIABLE: there is no environment variable"),
        (["--secondary", "file:/no/such/file"], "--secondary: file:/no/such/file: the file cannot be read"),
        (["--primary", "Endpoint=sb://h;SharedAccessKey=topsecret"], "--primary: SharedAccessKeyName and"),
        (["--secondary", "env:HOME_STRING"], "both lead to"),
        (["--patience", "-1"], "--patience"),
        (["--long-poll", "0"], "--long-poll"),
    ],
)
def test_a_wrong_option_is_said_in_one_line_with_status_2(
    namespaces: Namespaces, options: list[str], said: str
) -> None:
    done = syphon(namespaces, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "topsecret" not in done.stderr


def test_a_namespace_that_cannot_be_reached_or_used_is_said_with_the_way_out(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    backlog.fill(backlog.destination(), 1)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        nobody = f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=a2V5;"
        nobody += "UseDevelopmentEmulator=true"
        away = syphon(namespaces, "--namespace-name", backlog.name, secondary=nobody)
    assert away.returncode == 2
    assert "cannot be asked about its backlog queues" in away.stderr and "is it running" in away.stderr
    assert "a2V5" not in away.stderr + away.stdout
    for how in ("--once", "--watch"):
        deaf = syphon(namespaces, "--namespace-name", backlog.name, how, secondary=namespaces.secondary_with("sends"))
        assert deaf.returncode == 2
        assert "right Listen" in deaf.stderr


def test_the_secret_of_a_file_is_used_and_not_shown(namespaces: Namespaces, tmp_path: Path) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 2)
    secret = tmp_path / "secondary"
    secret.write_text(namespaces.secondary.connection_string + "\n")
    done = syphon(namespaces, "--namespace-name", backlog.name, "--secondary", f"file:{secret}", "--json")
    assert done.returncode == 0
    assert "SharedAccessKey" not in done.stdout + done.stderr
    assert len(asyncio.run(namespaces.peek(namespaces.primary, queue))) == 2
