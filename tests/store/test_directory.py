"""A data directory belongs to one process, and to one user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.store.directory import DataDirectory
from spillway.store.errors import StoreError, StoreInUse
from spillway.store.sqlite import open_sqlite_journal

HOLDER = """
import sys, pathlib
from spillway.store.directory import DataDirectory
held = DataDirectory(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with holder(tmp_path / "data") as process:
        with pytest.raises(StoreInUse) as refused:
            DataDirectory(tmp_path / "data")
        assert str(tmp_path / "data") in str(refused.value) and f"process {process.pid}" in str(refused.value)
        process.kill()
        process.wait()
        DataDirectory(tmp_path / "data").close()  # a killed process leaves no lock behind


def test_the_directory_is_given_up_with_the_last_of_its_journals(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    first = open_sqlite_journal(directory, "first")
    second = open_sqlite_journal(directory, "second")
    first.recover()
    second.recover()
    first.close()
    with pytest.raises(StoreInUse):
        DataDirectory(tmp_path / "data")
    second.close()
    DataDirectory(tmp_path / "data").close()
    assert (tmp_path / "data" / "first" / "journal.db").exists()


def test_everything_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        directory = DataDirectory(tmp_path / "deep" / "data")
        journal_path = directory.journal_path("one")
        directory.close()
    finally:
        os.umask(old)
    for made in (tmp_path / "deep", tmp_path / "deep" / "data", journal_path.parent):
        assert made.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "data" / "lock").stat().st_mode & 0o777 == 0o600


def test_a_file_in_the_place_of_the_directory_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StoreError, match="data cannot be used"):
        DataDirectory(tmp_path / "data")
