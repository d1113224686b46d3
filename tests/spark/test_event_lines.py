"""Lines of events: what can be used of a file, and what is wrong with the rest."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spillway.spark.outages.event_lines import checked_event, find_files, read_file
from spillway.spark.platform.line_files import BadLine
from tests.spark.event_files import Writer

GOOD: dict[str, Any] = {
    "format": 1, "time": "2027-01-15T08:00:00.000000Z", "epoch_us": 1_800_000_000_000_000, "clock_us": 5, "number": 1,
    "namespace": "contoso", "process": "web-1", "event": "pinged", "entity": "orders", "count": 1, "answered": True,
}  # fmt: skip


def test_a_line_as_the_library_writes_it_is_taken() -> None:
    row = checked_event(json.dumps({**GOOD, "something": "new"}).encode())
    assert (row["entity"], row["answered"], row["before"], row["until_us"]) == ("orders", True, "", None)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": 2}, "'format' must be 1"),
        ({"namespace": ""}, "'namespace' must be text"),
        ({"process": None}, "'process' must be text"),
        ({"number": 0}, "'number' must be a whole number from 1"),
        ({"number": True}, "'number' must be a whole number"),
        ({"count": -1}, "'count' must be a whole number from 0"),
        ({"count": 1.5}, "'count' must be a whole number"),
        ({"epoch_us": 5}, "'epoch_us' must be a whole number from 946684800000000"),
        ({"clock_us": "now"}, "'clock_us' must be a whole number"),
        ({"answered": "yes"}, "'answered' must be true or false"),
        ({"entity": 7}, "'entity' must be text"),
        ({"error": "\ud800"}, "'error' has half a character in it"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_by_its_name(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_event(json.dumps({**GOOD, **changed}).encode())


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"[" * 100_000, b"17", b"null", b'{"format": 1}'])
def test_noise_is_a_value_error_and_nothing_else(line: bytes) -> None:
    with pytest.raises(ValueError):
        checked_event(line)


def test_a_line_that_a_killed_process_did_not_finish_is_set_aside_and_the_others_count(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "web")
    writer.outage("orders", 0, 30, 30)
    with writer.path.open("a") as file:
        file.write('{"format": 1, "epo')
    rows = list(read_file(str(writer.path)))
    (bad,) = (row for row in rows if isinstance(row, BadLine))
    assert (bad.line, bad.text) == (writer.number + 1, '{"format": 1, "epo')
    assert len(rows) == writer.number + 1


def test_of_a_packed_file_that_is_cut_short_the_lines_in_front_count(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "web")
    writer.outage("orders", 0, 30, 30)
    packed = tmp_path / "events.jsonl.gz"
    packed.write_bytes(gzip.compress(writer.path.read_bytes())[:-9])
    rows = list(read_file(str(packed)))
    assert isinstance(rows[-1], BadLine) and "gzip: the file is cut short" in rows[-1].reason
    assert len(rows) >= writer.number - 1


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * (3 << 20))
    (bad,) = read_file(str(path))
    assert isinstance(bad, BadLine) and "a line is longer than 1,048,576 bytes" in bad.reason


def test_a_file_that_has_gone_is_set_aside(tmp_path: Path) -> None:
    (bad,) = read_file(str(tmp_path / "gone.jsonl"))
    assert isinstance(bad, BadLine) and bad.reason == "cannot be read: No such file or directory"


def test_files_are_found_below_directories_and_by_name_once_each(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "events", "web")
    (tmp_path / "events" / "notes.txt").write_text("not events")
    assert find_files([tmp_path / "events", writer.path, tmp_path]) == [str(writer.path)]
