"""Where a data directory is served: written by the broker, read by other commands."""

import json
import stat
from pathlib import Path

import pytest

from spillway.hosting.running_file import RUNNING_FILE, Running, read_running, write_running
from spillway.store.own_files import NotOurFile

RUNNING = Running("localhost", is_clear_text=True, is_development=False, ports={"mine": 5672, "other": 5673})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_running(tmp_path, RUNNING)
    assert read_running(tmp_path) == RUNNING
    assert list(read_running(tmp_path).ports) == ["mine", "other"], "in the order in which they are served"


def test_others_may_read_it(tmp_path: Path) -> None:
    write_running(tmp_path, RUNNING)
    assert stat.S_IMODE((tmp_path / RUNNING_FILE).stat().st_mode) == 0o644


def test_what_an_older_broker_wrote_beside_it_does_not_matter(tmp_path: Path) -> None:
    write_running(tmp_path, RUNNING)
    facts = json.loads((tmp_path / RUNNING_FILE).read_text())
    (tmp_path / RUNNING_FILE).write_text(json.dumps({**facts, "pid": 5}))
    assert read_running(tmp_path) == RUNNING


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"host": "h"}', '{"host": "h", "ports": 5}', '{"host": "h", "ports": {"a": "b"}}']
)
def test_anything_else_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / RUNNING_FILE).write_text(text)
    with pytest.raises(ValueError):
        read_running(tmp_path)


def test_a_missing_file_and_a_link_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_running(tmp_path)
    write_running(tmp_path, RUNNING)
    (tmp_path / RUNNING_FILE).rename(tmp_path / "elsewhere.json")
    (tmp_path / RUNNING_FILE).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(NotOurFile):
        read_running(tmp_path)
