"""The tools measure what they say they measure: shown without a broker."""

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tools.commit import commit
from tests.tools.relay import Relay
from tests.tools.syncshim import SyncShim
from tools.neighbours import judge

COMMIT_ROWS = """
import sys, time, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("pragma journal_mode=wal")
connection.execute(f"pragma synchronous={sys.argv[2]}")
connection.execute("create table if not exists t(x)")
for number in range(int(sys.argv[3])):
    begun = time.monotonic_ns()
    connection.execute("insert into t values (?)", (number,))
    print(begun, time.monotonic_ns(), flush=True)
"""


def commit_rows(shim: SyncShim, database: Path, synchronous: str, count: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", COMMIT_ROWS, str(database), synchronous, str(count)],
        env=shim.env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_delayed_sync_delays_every_commit_of_sqlite(tmp_path: Path) -> None:
    shim = SyncShim(tmp_path)
    shim.set(delay_ms=30)
    done = commit_rows(shim, tmp_path / "rows.db", "full", 3)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        begun_ns, ended_ns = map(int, line.split())
        assert ended_ns - begun_ns >= 30_000_000
        assert shim.good_calls_between(begun_ns, ended_ns)


def test_without_synchronous_no_commit_waits_for_a_sync(tmp_path: Path) -> None:
    shim = SyncShim(tmp_path)
    done = commit_rows(shim, tmp_path / "rows.db", "off", 3)
    assert len(done.stdout.splitlines()) == 3, done.stderr
    for line in done.stdout.splitlines():
        begun_ns, ended_ns = map(int, line.split())
        assert not shim.good_calls_between(begun_ns, ended_ns)


def test_a_failing_sync_fails_the_commit(tmp_path: Path) -> None:
    shim = SyncShim(tmp_path)
    shim.set(fail_from=1)
    done = commit_rows(shim, tmp_path / "rows.db", "full", 1)
    assert done.returncode != 0
    assert "IOError" in done.stderr
    assert [call.result for call in shim.calls()].count(-1) >= 1


def echo_once(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)


def test_the_relay_adds_its_delay_each_way_and_keeps_chunks_under_way_side_by_side() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo_once, args=(listener,), daemon=True).start()
        with (
            Relay("127.0.0.1", listener.getsockname()[1], delay_ms=35) as relay,
            socket.create_connection(("127.0.0.1", relay.port)) as client,
        ):
            begun = time.monotonic()
            client.sendall(b"0")
            assert client.recv(1) == b"0"
            assert time.monotonic() - begun >= 0.070

            sent = b"".join(bytes([value]) * 50 for value in range(40))
            begun = time.monotonic()
            for start in range(0, len(sent), 50):
                client.sendall(sent[start : start + 50])
                time.sleep(0.001)  # chunks of their own on the wire
            back = b""
            while len(back) < len(sent):
                back += client.recv(65536)
            assert back == sent
            assert time.monotonic() - begun < 0.5, "40 chunks one after the other would take 2.8 s"


def test_the_relay_passes_on_the_end_of_the_stream_and_a_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo_once, args=(listener,), daemon=True).start()
        with (
            Relay("127.0.0.1", listener.getsockname()[1], delay_ms=1) as relay,
            socket.create_connection(("127.0.0.1", relay.port)) as client,
        ):
            client.sendall(b"last words")
            client.shutdown(socket.SHUT_WR)
            back = b""
            while data := client.recv(65536):
                back += data
            assert back == b"last words"


def rounds(*p99s: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"quiet": {"p99_ms": quiet}, "under_attack": {"p99_ms": under}} for quiet, under in p99s]


@pytest.mark.parametrize(
    ("measured", "holds"),
    [
        (rounds((5, 20), (5, 20), (5, 900)), True),  # the machine stood still once
        (rounds((5, 20), (5, 60), (5, 70)), False),  # it is slow
        (rounds((2, 21), (2, 22), (90, 23)), False),  # a quiet part that was not quiet excuses nothing
        (rounds((5, 49.9)), True),
        (rounds((5, 50)), False),
        (rounds((1, 10)), False),
    ],
)
def test_a_neighbour_is_judged_by_the_medians_of_its_rounds(measured: list[dict[str, Any]], holds: bool) -> None:
    assert judge("an attack", measured)["holds"] is holds


def test_the_commit_of_a_measurement_is_that_of_its_tree() -> None:
    assert re.fullmatch(r"([0-9a-f]{7,}\+?)?", commit())
