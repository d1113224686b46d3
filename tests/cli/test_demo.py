"""The demo: its audit sees every kind of loss, and the real thing passes it."""

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from spillway.cli.demo import SHARES, Book, StoredState, report


@pytest.fixture
def book() -> Book:
    kinds = ["completed", "abandoned", "locked", "dead-lettered", "deferred"]
    return Book(
        acknowledged={"waiting", *kinds},
        unknown={"unanswered"},
        settled={kind: kind for kind in kinds},
        deferred_numbers=[7],
    )


@pytest.fixture
def found() -> StoredState:
    return StoredState(
        in_queue=Counter(["waiting", "abandoned", "locked"]),
        dead_lettered=Counter(["dead-lettered"]),
        deferred=Counter(["deferred"]),
    )


def audit(book: Book, found: StoredState) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=100)
    is_whole = report(book, found, console)
    assert isinstance(console.file, io.StringIO)
    return is_whole, console.file.getvalue()


def test_the_audit_passes_when_everything_is_where_it_belongs(book: Book, found: StoredState) -> None:
    is_whole, text = audit(book, found)
    assert is_whole
    assert "nothing acknowledged was lost, nothing completed came back" in text


def test_a_send_that_was_never_answered_may_be_there_or_not(book: Book, found: StoredState) -> None:
    found.in_queue["unanswered"] += 1
    assert audit(book, found)[0]


@pytest.mark.parametrize("place", ["in_queue", "dead_lettered", "deferred"])
def test_a_missing_message_fails_the_audit(book: Book, found: StoredState, place: str) -> None:
    getattr(found, place).popitem()
    is_whole, text = audit(book, found)
    assert not is_whole
    assert "1 lost" in text


def test_a_completed_message_that_came_back_fails_the_audit(book: Book, found: StoredState) -> None:
    found.in_queue["completed"] += 1
    assert not audit(book, found)[0]


def test_a_message_that_came_twice_fails_the_audit(book: Book, found: StoredState) -> None:
    found.in_queue["waiting"] += 1
    assert not audit(book, found)[0]


def test_a_message_in_the_wrong_place_fails_the_audit(book: Book, found: StoredState) -> None:
    found.in_queue["deferred"] = found.deferred.pop("deferred")
    assert not audit(book, found)[0]


def test_a_message_that_nobody_sent_fails_the_audit(book: Book, found: StoredState) -> None:
    found.in_queue["stranger"] += 1
    assert not audit(book, found)[0]


def test_a_damaged_body_fails_the_audit(book: Book, found: StoredState) -> None:
    found.damaged.append("waiting")
    assert not audit(book, found)[0]


def test_every_message_received_has_one_fate() -> None:
    assert sum(SHARES.values()) == 100


def test_the_demo_shows_that_a_killed_broker_lost_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "spillway", "demo", "--messages", "200", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing acknowledged was lost, nothing completed came back" in done.stdout
    assert (tmp_path / "kept" / "data").is_dir()
    again = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
