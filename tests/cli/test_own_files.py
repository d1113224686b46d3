"""Files of the data directory are opened without following links: what lies elsewhere is neither read nor written."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.broker_process import BrokerProcess

# Replaced whole by every start, so that a link there is replaced and not followed.
REPLACED = {"running.json", "ns/ballast"}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as a broker leaves it that was killed: with all its files."""
    data = tmp_path_factory.mktemp("used") / "data"
    with BrokerProcess(data, queues=["orders"], namespaces=["ns"], is_development=False) as broker:
        broker.kill()
    (data / "ns" / "set-apart.jsonl").write_text("")  # there after damage alone
    return data


def files_in(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file())


def serve(data: Path) -> subprocess.CompletedProcess[str]:
    """It is expected to refuse; one that serves is stopped."""
    line = [sys.executable, "-m", "spillway", "serve", "--namespace", "ns=0", "--data", str(data), "--json"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = process.stdout.readline()
    if ready:
        process.terminate()
    rest, said = process.communicate(timeout=30)
    return subprocess.CompletedProcess(line, process.returncode, ready + rest, said)


def test_a_link_in_place_of_any_file_is_refused_or_replaced(used: Path, tmp_path: Path) -> None:
    names = files_in(used)
    assert {"keys.json", "keys.lock", "lock", "running.json", "tls/server.pem"} <= set(names)
    assert {name.rpartition("/")[2] for name in names} >= {"journal.db", "journal.db-wal"}
    for index, name in enumerate(names):
        if name.endswith("-shm"):
            continue  # made anew at every start: SQLite takes none that is there from before
        data, victim = tmp_path / f"data{index}", tmp_path / f"victim{index}"
        shutil.copytree(used, data)
        (data / name).rename(victim)
        (data / name).symlink_to(victim)
        before = (victim.read_bytes(), stat.S_IMODE(victim.stat().st_mode))
        done = serve(data)
        assert (victim.read_bytes(), stat.S_IMODE(victim.stat().st_mode)) == before, name
        if name in REPLACED:
            assert done.returncode == 0, done.stderr
            assert not (data / name).is_symlink()
        else:
            assert (done.returncode, done.stdout) == (1, ""), name
            (line,) = [line for line in done.stderr.splitlines() if line.startswith("spillway: ")]
            assert str(data / name) in line
            assert "is a symbolic link, which is not followed" in line


def test_the_directory_itself_may_be_a_link(used: Path, tmp_path: Path) -> None:
    shutil.copytree(used, tmp_path / "disk")
    (tmp_path / "data").symlink_to("disk")
    done = serve(tmp_path / "data")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_can_write_to_is_warned_of(used: Path, tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    shutil.copytree(used, data)
    data.chmod(mode)
    assert f"others can write to {data} (mode {mode:04o})" in serve(data).stderr
    data.chmod(0o755)
    assert "others can write to" not in serve(data).stderr


def test_where_a_broker_was_served_is_not_read_through_a_link(used: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(used, data)
    (data / "running.json").rename(tmp_path / "elsewhere.json")
    (data / "running.json").symlink_to(tmp_path / "elsewhere.json")
    line = [sys.executable, "-m", "spillway", "connection-string", "--data", str(data)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "running.json: is a symbolic link, which is not followed" in done.stderr
